// Clients of several GPUs, which host memory stands in for.
#include "core/base/cuda_driver.h"
#include "core/wire/directory.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

GpuUuid emulated(std::uint8_t number) {
  GpuUuid uuid{};
  uuid.back() = std::byte{number};
  return uuid;
}

class ServerGpusTest : public ServerTest {
 protected:
  ServerGpusTest()
      : ServerTest("[device]\ncapacity = '2MiB'\nextent_size = '1MiB'\ngpus = [0, 5]\n") {}

  struct Welcome {
    WireClient client;
    std::uint32_t device;
  };
  Welcome client_on(std::span<const std::byte> gpu) {
    Welcome welcome{WireClient(socket()), 99};
    EXPECT_TRUE(welcome.client.request(
        [&](Builder m) {
          auto hello = m.initHello();
          hello.setVersion(wire::kProtocolVersion);
          hello.setGpu({reinterpret_cast<const kj::byte*>(gpu.data()), gpu.size()});
        },
        [&](Reader m) { welcome.device = m.getWelcome().getDevice(); }));
    return welcome;
  }
  static std::vector<std::uint64_t> device_slots(WireClient& client, std::uint32_t ns) {
    std::vector<std::uint64_t> slots;
    client.request(
        [&](Builder m) {
          auto reserve = m.initReserve();
          reserve.setNs(ns);
          reserve.setTier(0);
          reserve.setCount(2);
        },
        [&](Reader m) {
          for (const auto slot : m.getReserved().getSlots()) slots.push_back(slot);
        });
    return slots;
  }
};

TEST_F(ServerGpusTest, a_client_is_told_the_number_of_the_gpu_it_names) {
  EXPECT_EQ(client_on(emulated(0)).device, 0U);
  EXPECT_EQ(client_on(emulated(5)).device, 1U);
  EXPECT_EQ(client_on(emulated(1)).device, kNoDevice);
  EXPECT_EQ(client_on({}).device, 0U);
}

TEST_F(ServerGpusTest, a_gpu_of_another_length_ends_the_session) {
  WireClient client(socket());
  EXPECT_FALSE(client.request([&](Builder m) {
    auto hello = m.initHello();
    hello.setVersion(wire::kProtocolVersion);
    hello.initGpu(15);
  }));
  EXPECT_TRUE(client.is_closed());
}

TEST_F(ServerGpusTest, slots_are_of_the_clients_gpu) {
  Welcome first = client_on(emulated(0));
  Welcome second = client_on(emulated(5));
  Welcome stranger = client_on(emulated(9));
  const auto of_first = device_slots(first.client, first.client.open(ns));
  const auto of_second = device_slots(second.client, second.client.open(ns));
  ASSERT_EQ(of_first.size(), 2U);
  ASSERT_EQ(of_second.size(), 2U);
  EXPECT_EQ(of_first[0] >> 60, 0U);
  EXPECT_EQ(of_second[0] >> 60, 1U);
  EXPECT_TRUE(device_slots(stranger.client, stranger.client.open(ns)).empty());
}

TEST_F(ServerGpusTest, status_shows_each_gpu) {
  Welcome second = client_on(emulated(5));
  ASSERT_EQ(device_slots(second.client, second.client.open(ns)).size(), 2U);
  EXPECT_TRUE(second.client.request([](Builder m) { m.setStatus(); },
                                    [&](Reader m) {
                                      const auto gpus = m.getStatusReply().getGpus();
                                      ASSERT_EQ(gpus.size(), 2U);
                                      EXPECT_EQ(gpus[0].getNumber(), 0U);
                                      EXPECT_EQ(gpus[0].getTakenBytes(), 0U);
                                      EXPECT_EQ(gpus[1].getNumber(), 5U);
                                      EXPECT_EQ(gpus[1].getTakenBytes(), 1U << 20);
                                      EXPECT_GT(gpus[1].getReservedBytes(), 0U);
                                      EXPECT_EQ(gpus[1].getUsedBytes(), 0U);
                                      EXPECT_EQ(gpus[1].getCapBytes(), 2U << 20);
                                    }));
}

}  // namespace
}  // namespace kvtier::daemon::testing
