// What kvtier.Pool is made of.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "kvtier/page_pool.h"

namespace kvtier::python {

// A pool and the arrays whose memory it names.
struct PoolHandle {
  std::shared_ptr<const PagePool> pool;
  std::optional<std::uint32_t> cuda_device;  // where the memory is; none: the host's
  nanobind::object arrays;
};

}  // namespace kvtier::python
