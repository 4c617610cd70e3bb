#include "client/python/prefix.h"

#include <nanobind/stl/vector.h>

#include "client/python/errors.h"
#include "client/python/module.h"
#include "client/python/numbers.h"

namespace kvtier::python {

namespace nb = nanobind;

void register_prefix(nb::module_& m) {
  nb::class_<PrefixHandle>(m, "Prefix")
      .def(
          "__init__",
          [](PrefixHandle* self, const Namespace& ns) { new (self) PrefixHandle(Prefix(ns)); },
          nb::arg("ns"))
      .def(
          "append",
          [](PrefixHandle& self, nb::object tokens) {
            value(self.change().append(numbers_of(tokens, "token")));
          },
          nb::arg("tokens"))
      .def(
          "append_digest",
          [](PrefixHandle& self, nb::bytes digest) {
            value(self.change().append_digest(bytes_of(digest)));
          },
          nb::arg("digest"))
      .def(
          "cover",
          [](PrefixHandle& self, std::size_t first, std::size_t end, nb::bytes extra) {
            value(self.change().cover(first, end, bytes_of(extra)));
          },
          nb::arg("first"), nb::arg("end"), nb::arg("extra"))
      .def(
          "truncate",
          [](PrefixHandle& self, std::size_t tokens) { self.change().truncate(tokens); },
          nb::arg("tokens"))
      .def(
          "expect_answer",
          [](PrefixHandle& self, std::uint32_t tokens) { self.change().expect_answer(tokens); },
          nb::arg("tokens"))
      .def("copy", [](const PrefixHandle& self) { return PrefixHandle(*self.read()); })
      .def_prop_ro("tokens", [](const PrefixHandle& self) { return self.read()->tokens(); })
      .def_prop_ro("blocks", [](const PrefixHandle& self) { return self.read()->blocks(); })
      .def_prop_ro("blocks_matchable",
                   [](const PrefixHandle& self) { return self.read()->blocks_matchable(); })
      .def_prop_ro("keys", [](const PrefixHandle& self) {
        std::vector<nb::bytes> keys;
        for (const Key& key : self.read()->keys())
          keys.emplace_back(key.bytes.data(), key.bytes.size());
        return keys;
      });
}

}  // namespace kvtier::python
