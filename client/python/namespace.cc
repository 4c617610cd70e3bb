// kvtier._kvtier.Namespace: what a checked kvtier::Namespace says of itself. The fields are given
// and kept by the dataclass kvtier.Namespace.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "client/python/errors.h"
#include "client/python/module.h"
#include "kvtier/record_layout.h"

namespace kvtier::python {

namespace nb = nanobind;

namespace {

// kv_heads, head_dim_k, head_dim_v, format, raw_bytes.
using Shape = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::string, std::uint32_t>;

nb::bytes as_bytes(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

Namespace checked(std::string model, std::string adapter, std::string tenant, std::string positions,
                  std::uint32_t layers, const Shape& shape, std::uint32_t block_tokens,
                  std::uint32_t rank, std::uint32_t ranks, std::string page_layout,
                  std::uint32_t extra_bytes_max, std::uint32_t digest_bytes,
                  const std::vector<Shape>& layer_shapes) {
  const auto unpacked = [](const Shape& s) {
    return LayerShape{std::get<0>(s), std::get<1>(s), std::get<2>(s),
                      value(parse_storage_format(std::get<3>(s))), std::get<4>(s)};
  };
  const LayerShape all = unpacked(shape);
  Namespace ns{.model = std::move(model),
               .adapter = std::move(adapter),
               .tenant = std::move(tenant),
               .layers = layers,
               .kv_heads = all.kv_heads,
               .head_dim_k = all.head_dim_k,
               .head_dim_v = all.head_dim_v,
               .block_tokens = block_tokens,
               .format = all.format,
               .rank = rank,
               .ranks = ranks,
               .positions = std::move(positions),
               .raw_bytes = all.raw_bytes,
               .page_layout = std::move(page_layout),
               .extra_bytes_max = extra_bytes_max,
               .digest_bytes = digest_bytes,
               .layer_shapes = {}};
  for (const Shape& of_layer : layer_shapes) ns.layer_shapes.push_back(unpacked(of_layer));
  value(ns.validate());
  return ns;
}

}  // namespace

void register_namespace(nb::module_& m) {
  nb::class_<Namespace>(m, "Namespace")
      .def(nb::new_(&checked), nb::kw_only(), nb::arg("model"), nb::arg("adapter"),
           nb::arg("tenant"), nb::arg("positions"), nb::arg("layers"), nb::arg("shape"),
           nb::arg("block_tokens"), nb::arg("rank"), nb::arg("ranks"), nb::arg("page_layout"),
           nb::arg("extra_bytes_max"), nb::arg("digest_bytes"), nb::arg("layer_shapes"))
      .def_prop_ro("id", [](const Namespace& ns) { return as_bytes(id_of(ns).bytes); })
      .def_prop_ro("record_bytes",
                   [](const Namespace& ns) { return RecordLayout::of(ns).record_bytes; })
      .def("encode", [](const Namespace& ns) { return as_bytes(encode(ns)); });
}

}  // namespace kvtier::python
