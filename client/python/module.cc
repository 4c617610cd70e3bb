#include "client/python/module.h"

#include <nanobind/stl/string.h>

#include <string>

#include "client/python/errors.h"
#include "client/python/gil.h"

namespace nb = nanobind;

NB_MODULE(_kvtier, m) {
  using namespace kvtier::python;
  // Handles that live until the interpreter ends are allowed to: atexit closes the clients.
  nb::set_leak_warnings(false);
  register_errors();
  m.def("note_exit", &note_exit);
  register_namespace(m);
  register_prefix(m);
  register_pool(m);
  register_handles(m);
  register_client(m);
  m.def("version", [] { return std::string(KVTIER_VERSION); });
  m.def("with_cuda", [] { return bool{KVTIER_WITH_CUDA}; });
}
