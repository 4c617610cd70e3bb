// A container whose seccomp filter forbids a part of io_uring: the device is refused by name, and
// nothing ends.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <ostream>
#include <string>
#include <tuple>

#include "storage/device/block_device.h"

namespace kvtier::storage {
namespace {

struct Call {
  const char* name;
  long number;
};
void PrintTo(const Call& call, std::ostream* out) {
  *out << call.name;
}

// Of this process and for good: the call fails as if it were not permitted.
void forbid(long number) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof code / sizeof *code, code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::perror("no filter can be set");
    ::_exit(2);
  }
}

class FilteredCalls : public ::testing::TestWithParam<std::tuple<Call, bool>> {};

TEST_P(FilteredCalls, DeviceIsRefusedAndTheMendNamesTheCalls) {
  const auto [call, sqpoll] = GetParam();
  const BlockDevice::Limits limits{.depth = 16, .files = 64, .buffers = 8};
  if (const auto unfiltered = make_uring_device(limits, {.sqpoll = sqpoll}); !unfiltered)
    GTEST_SKIP() << unfiltered.error().message;
  EXPECT_EXIT(
      {
        forbid(call.number);
        const auto device = make_uring_device(limits, {.sqpoll = sqpoll});
        std::fputs(device ? "a device was made" : device.error().message.c_str(), stderr);
        ::_exit(device ? 1 : 0);
      },
      ::testing::ExitedWithCode(0),
      "cannot be set up.*allow io_uring_setup, io_uring_enter and io_uring_register");
}

INSTANTIATE_TEST_SUITE_P(EachCall, FilteredCalls,
                         ::testing::Combine(::testing::Values(Call{"setup", __NR_io_uring_setup},
                                                              Call{"enter", __NR_io_uring_enter},
                                                              Call{"register",
                                                                   __NR_io_uring_register}),
                                            ::testing::Bool()),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param).name) +
                                  (std::get<1>(of.param) ? "_with_sqpoll" : "");
                         });

}  // namespace
}  // namespace kvtier::storage
