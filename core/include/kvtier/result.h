// Results and errors of everything an engine calls.
//
// Three kinds of failure are never mixed: a programming error aborts (core/base/check.h), a
// misconfiguration ends the program naming the place and the mend, and everything the environment
// can do to us comes back as a Result. No function of kvtier throws.
#pragma once

#include <boost/system/result.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvtier {

enum class Errc {
  unavailable = 1,  // no daemon there, or the connection ended
  deadline,         // the caller's deadline passed first
  refused,          // the peer understood and said no
  malformed,        // bytes that do not follow their format
  version,          // the peer or file speaks another version
  invalid,          // an argument, option or setting is out of its range
  not_found,        // the named thing is not there
  no_space,         // a cap or a bounded queue is full
  io,               // the kernel or a device failed
  corrupt,          // header, proof or checksum does not hold
  stale,            // a lease ended before its copy did
};

// "unavailable", "deadline", ...
const char* name(Errc code) noexcept;

struct Error {
  Errc code;
  std::string message;  // says what, where, and the mend where there is one

  friend bool operator==(const Error&, const Error&) = default;
};

// Found by boost::system::result when value() is called on an error: a programming error.
[[noreturn]] inline void throw_exception_from_error(const Error& error,
                                                    const boost::source_location&) {
  throw std::logic_error("value() of an error: " + error.message);
}

template <class T>
using Result = boost::system::result<T, Error>;

inline Error make_error(Errc code, std::string message) {
  return {code, std::move(message)};
}

}  // namespace kvtier
