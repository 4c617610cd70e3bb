// One head of one block by the rules of docs/format.md, number by number and without looking at the
// kernels: what every kernel's bytes are held against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvtier/namespace.h"

namespace kvtier::kernels {

// K or V of one head of one block.
struct HeadShape {
  StorageFormat format = StorageFormat::f32;
  std::size_t tokens = 16;
  std::size_t dim = 64;
  bool v = false;
};

struct StoredHead {
  std::vector<std::byte> bytes;
  float scale = 1;  // in the header, where the format has one
};

// `values` is [tokens][dim], finite.
StoredHead reference_head(const HeadShape& shape, const std::vector<float>& values);

// The number at `token` and `channel` of a stored head.
float reference_value(const HeadShape& shape, const std::byte* bytes, float scale,
                      std::size_t token, std::size_t channel);

// How far that may be from x. `amax` is the largest magnitude of those that share its scale: of the
// head for FP8, of the group for integers.
double error_bound(StorageFormat format, double x, double amax, double head_amax);

// The largest magnitude of the group that a number is in; of the whole head without groups.
double group_amax(const HeadShape& shape, const std::vector<float>& values, std::size_t token,
                  std::size_t channel);

}  // namespace kvtier::kernels
