// The one structure by which arrays are exchanged that this module reads itself, because it wants
// the address and the strides of elements of any type, also of those that have no name in C++. As
// the DLPack standard lays it out (versions 0.x and 1.x).
#pragma once

#include <cstdint>

namespace kvtier::python::dlpack {

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: contiguous, the last axis innermost
  std::uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct ManagedVersioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

constexpr std::uint64_t kReadOnly = 1;

}  // namespace kvtier::python::dlpack
