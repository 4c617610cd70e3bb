// The parts of the module kvtier._kvtier, which the package kvtier wraps (client/python/kvtier).
//
// An object of it may be used by any number of Python's threads. What the C++ API gives one thread
// at a time is under a mutex that is taken without Python's lock; what a call uses stays alive for
// the call, whoever closes the object meanwhile.
#pragma once

#include <nanobind/nanobind.h>

namespace kvtier::python {

void register_namespace(nanobind::module_& m);
void register_prefix(nanobind::module_& m);
void register_pool(nanobind::module_& m);
void register_handles(nanobind::module_& m);
void register_client(nanobind::module_& m);

}  // namespace kvtier::python
