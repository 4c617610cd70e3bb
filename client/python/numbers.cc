#include "client/python/numbers.h"

#include <nanobind/ndarray.h>

#include <string>
#include <utility>

#include "client/python/errors.h"

namespace kvtier::python {

namespace nb = nanobind;

namespace {

using Array = nb::ndarray<nb::ro, nb::ndim<1>, nb::device::cpu>;

[[noreturn]] void out_of_range(const char* what, std::size_t at) {
  throw Raised{make_error(Errc::invalid, std::string(what) + " " + std::to_string(at) +
                                             " is not from 0 to 4294967295")};
}

template <class T>
std::vector<std::uint32_t> from(const Array& array, const char* what) {
  std::vector<std::uint32_t> numbers(array.shape(0));
  const T* data = static_cast<const T*>(array.data());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const T number = data[static_cast<std::int64_t>(i) * array.stride(0)];
    if (!std::in_range<std::uint32_t>(number)) out_of_range(what, i);
    numbers[i] = static_cast<std::uint32_t>(number);
  }
  return numbers;
}

std::vector<std::uint32_t> from_array(const Array& array, const char* what) {
  const auto type = array.dtype();
  if (type == nb::dtype<std::uint32_t>()) return from<std::uint32_t>(array, what);
  if (type == nb::dtype<std::int64_t>()) return from<std::int64_t>(array, what);
  if (type == nb::dtype<std::int32_t>()) return from<std::int32_t>(array, what);
  if (type == nb::dtype<std::uint64_t>()) return from<std::uint64_t>(array, what);
  if (type == nb::dtype<std::uint16_t>()) return from<std::uint16_t>(array, what);
  if (type == nb::dtype<std::int16_t>()) return from<std::int16_t>(array, what);
  throw nb::type_error((std::string(what) + "s must be integers of 16, 32 or 64 bits").c_str());
}

std::vector<std::uint32_t> from_sequence(nb::handle source, const char* what) {
  std::vector<std::uint32_t> numbers;
  numbers.reserve(nb::len(source));
  for (const nb::handle item : source) {
    const nb::object index = nb::steal(PyNumber_Index(item.ptr()));
    if (!index) throw nb::python_error();
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || !std::in_range<std::uint32_t>(number)) out_of_range(what, numbers.size());
    numbers.push_back(static_cast<std::uint32_t>(number));
  }
  return numbers;
}

}  // namespace

std::vector<std::uint32_t> numbers_of(nb::handle source, const char* what) {
  if (nb::isinstance<nb::list>(source) || nb::isinstance<nb::tuple>(source))
    return from_sequence(source, what);
  if (Array array; nb::try_cast(source, array)) return from_array(array, what);
  // A range, say; not a string, whose items are no numbers.
  if (PySequence_Check(source.ptr())) return from_sequence(source, what);
  throw nb::type_error(
      (std::string(what) + "s must be a sequence of integers, or an array of one dimension of them")
          .c_str());
}

std::span<const std::byte> bytes_of(const nb::bytes& bytes) noexcept {
  return {reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()};
}

}  // namespace kvtier::python
