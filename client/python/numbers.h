// Lists of numbers that Python gives: token ids, page numbers.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <vector>

namespace kvtier::python {

// What `source` has, which is a list, a tuple, or an array of one dimension of integers in host
// memory (NumPy, torch, anything with the buffer protocol or DLPack). `what` names it in errors:
// invalid, where a number is not from 0 to 2^32 - 1; TypeError, where it is none of those.
std::vector<std::uint32_t> numbers_of(nanobind::handle source, const char* what);

// The bytes of a bytes object or of a buffer of bytes, which must outlive the span.
std::span<const std::byte> bytes_of(const nanobind::bytes& bytes) noexcept;

}  // namespace kvtier::python
