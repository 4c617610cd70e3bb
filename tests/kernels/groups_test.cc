// What int8 and int4 make of numbers that are not ordinary.
#include <cmath>
#include <limits>

#include "tests/kernels/isa.h"
#include "tests/kernels/kv_sequence.h"

namespace kvtier::kernels {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

// One block of 16 tokens of one head of 64, as K and as V; what is not given is 0. Groups of V are
// channels 0 to 31 and 32 to 63 of a token, groups of K two channels.
class Groups : public EveryIsa {
 protected:
  static constexpr std::size_t kDim = 64;

  void store(std::vector<float> values, StorageFormat format) {
    values.resize(16 * kDim);
    layout_ =
        KvShape{.kv_heads = 1, .head_dim_k = kDim, .head_dim_v = kDim, .format = format}.layout();
    record_.assign(layout_.record_bytes, std::byte{0xA5});
    std::byte* record = record_.data();
    void* page = values.data();
    const LayerLayout layer = layout_.layer(0);
    const PageSide side = head_major(&page, 16, kDim, DType::f32);
    kernels().quantise_and_scatter({.layout = &layer,
                                    .blocks = 1,
                                    .page_tokens = 16,
                                    .page_type = DType::f32,
                                    .k = side,
                                    .v = side,
                                    .records = &record});
  }
  float k(std::size_t channel) const { return stored(false, channel); }
  float v(std::size_t channel) const { return stored(true, channel); }
  float scale() const {
    float value = 0;
    std::memcpy(&value, record_.data() + layout_.scale_offset(0, true, 0), sizeof value);
    return value;
  }

 private:
  // Of token 0.
  float stored(bool of_v, std::size_t channel) const {
    return stored_value(layout_, record_.data(), 0, of_v, 0, 0, channel);
  }

  RecordLayout layout_;
  std::vector<std::byte> record_;
};
KVTIER_FOR_EVERY_ISA(Groups);

TEST_P(Groups, KeepTheLargestMagnitudeOfEitherSign) {
  for (const float amax : {1.0F, 0.3F, 1e-20F, 3e30F}) {
    for (const StorageFormat format : {StorageFormat::int8, StorageFormat::int4}) {
      store({amax, -amax / 2}, format);
      EXPECT_FLOAT_EQ(v(0), amax);
      EXPECT_FLOAT_EQ(v(1), -amax / 2);
      store({-amax, amax / 2}, format);
      EXPECT_FLOAT_EQ(k(0), -amax);
      EXPECT_FLOAT_EQ(k(1), amax / 2);
    }
  }
}

TEST_P(Groups, LoseNothingToALargeNumberOfAnotherGroup) {
  std::vector<float> values(kDim, 0.01F);
  values[0] = 100;
  store(values, StorageFormat::int4);
  EXPECT_FLOAT_EQ(v(0), 100.0F);
  EXPECT_EQ(v(1), 0.0F);  // of the same group
  EXPECT_NEAR(v(32), 0.01F, 0.0007F);
  EXPECT_NEAR(k(2), 0.01F, 0.0007F);
}

TEST_P(Groups, OfZerosHaveZeros) {
  for (const StorageFormat format : {StorageFormat::int8, StorageFormat::int4}) {
    store({0.0F, -0.0F}, format);
    EXPECT_EQ(scale(), 1.0F);
    EXPECT_EQ(v(0), 0.0F);
    EXPECT_EQ(k(1), 0.0F);
  }
}

TEST_P(Groups, StoreNanAsZeroAndDoNotSpoilItsNeighbours) {
  for (const StorageFormat format : {StorageFormat::int8, StorageFormat::int4}) {
    store({std::nanf(""), 3.0F, -1.5F, -std::nanf("")}, format);
    EXPECT_EQ(v(0), 0.0F);
    EXPECT_FLOAT_EQ(v(1), 3.0F);
    EXPECT_FLOAT_EQ(v(2), -1.5F);
    EXPECT_EQ(k(3), 0.0F);
    store({std::nanf("")}, format);
    EXPECT_EQ(scale(), 1.0F);
    EXPECT_EQ(v(0), 0.0F);
  }
}

TEST_P(Groups, StoreAnInfinityAsTheLargestFloat) {
  for (const StorageFormat format : {StorageFormat::int8, StorageFormat::int4}) {
    store({kInfinity, 1.0F}, format);
    EXPECT_EQ(v(0), kLargest);
    EXPECT_EQ(v(1), 0.0F);
    store({-kInfinity, kInfinity}, format);
    EXPECT_EQ(v(0), -kLargest);
    // The opposite of the largest is one step short of it.
    EXPECT_NEAR(v(1) / kLargest, 1, format == StorageFormat::int8 ? 1.0 / 128 : 1.0 / 8);
  }
}

TEST_P(Groups, OfNumbersTooSmallForAScaleLoseOnlyPrecision) {
  const float tiny = std::ldexp(1.0F, -120);
  store({tiny, tiny / 1024, std::numeric_limits<float>::denorm_min()}, StorageFormat::int8);
  EXPECT_EQ(scale(), std::ldexp(1.0F, -117));
  EXPECT_NEAR(v(0) / tiny, 1, 1.0 / 64);
  EXPECT_EQ(v(1), 0.0F);
  EXPECT_EQ(v(2), 0.0F);
}

}  // namespace
}  // namespace kvtier::kernels
