#include "client/python/pool.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>

#include "client/python/dlpack.h"
#include "client/python/errors.h"
#include "client/python/module.h"

namespace kvtier::python {

namespace nb = nanobind;

namespace {

// base, bytes, page_stride, token_stride, head_stride, rows, row_bytes, row_stride.
using Side = std::tuple<std::uintptr_t, std::size_t, std::size_t, std::size_t, std::size_t,
                        std::uint32_t, std::size_t, std::size_t>;
using Layer = std::tuple<Side, std::optional<Side>>;

PoolSide unpacked(const Side& side) {
  const auto& [base, bytes, page, token, head, rows, row_bytes, row_stride] = side;
  return {.base = reinterpret_cast<std::byte*>(base),
          .bytes = bytes,
          .page_stride = page,
          .token_stride = token,
          .head_stride = head,
          .rows = rows,
          .row_bytes = row_bytes,
          .row_stride = row_stride};
}

DType type_of(const std::string& name) {
  if (name == "float32") return DType::f32;
  if (name == "float16") return DType::f16;
  if (name == "bfloat16") return DType::bf16;
  throw Raised{make_error(Errc::invalid, "page pool: elements are " + name +
                                             "; they must be float32, float16 or bfloat16")};
}

PoolHandle make_pool(const Namespace& ns, const std::string& dtype, std::uint32_t pages,
                     std::uint32_t page_tokens, const std::vector<Layer>& layers,
                     std::optional<std::uint32_t> cuda_device, nb::object arrays) {
  PoolShape shape{type_of(dtype), pages, page_tokens, {}};
  for (const auto& [k, v] : layers)
    shape.layers.push_back({unpacked(k), v ? unpacked(*v) : PoolSide{}});
  auto pool = std::make_shared<const PagePool>(value(PagePool::of(ns, std::move(shape))));
  return {std::move(pool), cuda_device, std::move(arrays)};
}

// address, shape, strides in elements (None: contiguous), type code, bits, lanes, device type,
// device, whether it is for reading alone, and what keeps it alive.
using View =
    std::tuple<std::uintptr_t, std::vector<std::int64_t>, std::optional<std::vector<std::int64_t>>,
               int, int, int, int, int, bool, nb::object>;

View view_of(const dlpack::Tensor& t, bool read_only, nb::object keep) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.data) + t.byte_offset;
  std::optional<std::vector<std::int64_t>> strides;
  if (t.strides != nullptr) strides.emplace(t.strides, t.strides + t.ndim);
  return {address,
          {t.shape, t.shape + t.ndim},
          std::move(strides),
          t.code,
          t.bits,
          t.lanes,
          t.device.type,
          t.device.id,
          read_only,
          std::move(keep)};
}

// Takes the tensor out of its capsule: it lives as long as what keeps it.
template <class Managed>
nb::object take(nb::handle capsule, const char* name, const char* used, Managed** managed) {
  *managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (*managed == nullptr) throw nb::python_error();
  nb::capsule keep(*managed, [](void* p) noexcept {
    auto* const ended = static_cast<Managed*>(p);
    if (ended->deleter != nullptr) ended->deleter(ended);
  });
  if (PyCapsule_SetName(capsule.ptr(), used) != 0) throw nb::python_error();
  return keep;
}

View dlpack_view(nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    dlpack::ManagedVersioned* managed = nullptr;
    auto keep = take(capsule, "dltensor_versioned", "used_dltensor_versioned", &managed);
    if (managed->major != 1) {
      throw nb::type_error("the array is of a version of DLPack that is not known here");
    }
    return view_of(managed->tensor, (managed->flags & dlpack::kReadOnly) != 0, std::move(keep));
  }
  dlpack::Managed* managed = nullptr;
  auto keep = take(capsule, "dltensor", "used_dltensor", &managed);
  return view_of(managed->tensor, false, std::move(keep));
}

}  // namespace

void register_pool(nb::module_& m) {
  m.def("dlpack_view", &dlpack_view, nb::arg("capsule"));
  nb::class_<PoolHandle>(m, "Pool")
      .def(nb::new_(&make_pool), nb::kw_only(), nb::arg("ns"), nb::arg("dtype"), nb::arg("pages"),
           nb::arg("page_tokens"), nb::arg("layers"), nb::arg("cuda_device").none(),
           nb::arg("arrays"))
      .def_prop_ro("pages", [](const PoolHandle& self) { return self.pool->pages(); })
      .def_prop_ro("page_tokens", [](const PoolHandle& self) { return self.pool->page_tokens(); })
      .def_prop_ro("pages_of_block",
                   [](const PoolHandle& self) { return self.pool->pages_of_block(); })
      .def_ro("cuda_device", &PoolHandle::cuda_device);
}

}  // namespace kvtier::python
