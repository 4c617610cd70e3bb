// The functions that templates have: raise_exception, namespace, range, dict and strftime_now. One
// rendering's, on one thread.
//
// It keeps all namespaces that it makes, since they may hold each other, and empties them at its
// end: until then every one of them is alive, so a chain of them does not go down one by one, each
// from within the one before.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine_adapter/reference/template/builtins/builtins.h"

namespace kvtier::jinja {

class Functions {
 public:
  // `meter` outlives it. `now`: seconds since the epoch.
  Functions(Meter& meter, std::int64_t now) : meter_(meter), now_(now) {}
  ~Functions();
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;

  // The function of that name; undefined for a name of none. Throws Fault for one of Jinja's that
  // is not supported.
  Value find(const std::string& name) const;
  // `name` is of one that there is. Throws Fault.
  Value call(const std::string& name, const Arguments& arguments);

 private:
  Value make_dict(const Arguments& arguments);
  Value make_namespace(const Arguments& arguments);
  Value make_range(const Arguments& arguments);
  Value format_now(const Arguments& arguments);

  Meter& meter_;
  const std::int64_t now_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace kvtier::jinja
