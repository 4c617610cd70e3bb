#include "client/python/errors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>

namespace kvtier::python {

namespace nb = nanobind;

void register_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Raised& raised) {
      const Error& error = raised.error;
      const nb::object exception =
          nb::module_::import_("kvtier._errors").attr("error_of")(name(error.code), error.message);
      PyErr_SetObject(exception.type().ptr(), exception.ptr());
    }
  });
}

}  // namespace kvtier::python
