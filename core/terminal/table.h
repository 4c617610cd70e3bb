// A table of text.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/shown.h"

namespace kvtier::ctl {

// Columns as wide as their widest cell; numbers to the right, text to the left. What is in a cell
// may come from anybody: it is escaped.
class Table {
 public:
  struct Column {
    std::string title;
    bool number = false;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {
    std::vector<std::string> titles;
    for (const Column& column : columns_) titles.push_back(column.title);
    rows_.push_back(std::move(titles));
  }

  void add(std::vector<std::string> row) {
    for (std::string& cell : row) cell = shown(cell);
    rows_.push_back(std::move(row));
  }

  std::string text() const {
    std::string out;
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t c = 0; c < row.size(); ++c) {
        const std::string pad(width(c) - row[c].size(), ' ');
        line += (c == 0 ? "" : "  ") + (columns_[c].number ? pad + row[c] : row[c] + pad);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  std::size_t width(std::size_t column) const {
    std::size_t widest = 0;
    for (const auto& row : rows_) widest = std::max(widest, row[column].size());
    return widest;
  }

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvtier::ctl
