#include "engine_adapter/reference/template/template.h"

#include "engine_adapter/reference/template/interpreter.h"
#include "engine_adapter/reference/template/syntax/ast.h"

namespace kvtier::jinja {
namespace {

Error error_of(const std::string& where, const Fault& fault) {
  return make_error(Errc::invalid,
                    where + ", line " + std::to_string(fault.line) + ": " + fault.what());
}

}  // namespace

struct Template::Tree {
  Block block;
};

Template::Template(std::unique_ptr<const Tree> tree, std::string where)
    : tree_(std::move(tree)), where_(std::move(where)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Result<Template> Template::compile(std::string_view source, const std::string& where) {
  try {
    return Template(std::make_unique<Tree>(Tree{parse(source)}), where);
  } catch (const Fault& fault) {
    return error_of(where, fault);
  }
}

Result<std::string> Template::render(const Map& variables, std::int64_t now,
                                     const RenderLimits& limits) const {
  if (variables.depth() > kValueDepthMax) {
    return make_error(Errc::invalid, "what the template is given is nested too deeply");
  }
  try {
    return Interpreter(variables, now, limits).run(tree_->block);
  } catch (const Raised& raised) {
    return make_error(Errc::refused, raised.what());
  } catch (const Fault& fault) {
    return error_of(where_, fault);
  }
}

}  // namespace kvtier::jinja
