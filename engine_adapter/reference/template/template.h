// Renders chat templates: the part of Jinja that they are written in, as jinja2 renders it with
// trim_blocks and lstrip_blocks. What is not of that part is refused when the template is compiled,
// or when it is reached, with its line. Immutable; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine_adapter/reference/template/value/limits.h"
#include "engine_adapter/reference/template/value/value.h"
#include "kvtier/result.h"

namespace kvtier::jinja {

class Template {
 public:
  // `where` names the template in errors. Errors: invalid, with the line and what is supported.
  static Result<Template> compile(std::string_view source, const std::string& where);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // `variables`: a mapping. Beside them a template may call raise_exception, namespace, range and
  // strftime_now, which formats `now` (seconds since 1970, UTC).
  // Errors: refused (the template's own raise_exception, whose message stands alone), invalid.
  Result<std::string> render(const Map& variables, std::int64_t now,
                             const RenderLimits& limits = {}) const;

 private:
  struct Tree;
  Template(std::unique_ptr<const Tree> tree, std::string where);

  std::unique_ptr<const Tree> tree_;
  std::string where_;
};

}  // namespace kvtier::jinja
