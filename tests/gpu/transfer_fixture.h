// Blocks of pages and records, on the host for the CPU twin and on the device for the kernel, with
// the records in HBM or in pinned host memory.
#pragma once

#include <memory>
#include <random>

#include "tests/gpu/gpu_test.h"
#include "tests/kernels/kv_sequence.h"
#include "tests/kernels/number_formats.h"

namespace kvtier::kernels::cuda {

enum class Where : std::uint8_t { hbm, pinned_host };

// Random elements of `type`, head by head of another magnitude: ordinary, zeros, tiny ones down to
// subnormals, huge ones; and with `specials` NaN and infinities among them.
inline std::vector<std::byte> random_heads(std::size_t heads, std::size_t head_elements, DType type,
                                           unsigned seed, bool specials) {
  std::mt19937 random(seed);
  std::vector<float> values(heads * head_elements);
  for (std::size_t head = 0; head < heads; ++head) {
    constexpr float kDeviations[] = {1, 30, 1e-39F, 0, 3e-6F, 2e4F, 1e37F, 1e-30F};
    const float deviation = kDeviations[random() % std::size(kDeviations)];
    std::normal_distribution<float> normal(0, 1);
    for (std::size_t i = 0; i < head_elements; ++i) {
      values[head * head_elements + i] = normal(random) * deviation;
    }
    if (!specials || random() % 2 == 0) continue;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float nan = std::nanf("");
    constexpr int kSpecials = 5;
    for (int i = 0; i < kSpecials; ++i) {
      const float special[kSpecials] = {nan, -nan, -0.0F, std::numeric_limits<float>::denorm_min(),
                                        random() % 4 == 0 ? -kInfinity : 1.0F};
      values[head * head_elements + random() % head_elements] = special[i];
    }
  }
  return packed(values, type);
}

// Whether both hold the same elements, or NaN at the same places.
inline testing::AssertionResult same_elements(const std::byte* got, const std::byte* expected,
                                              std::size_t count, DType type) {
  if (std::memcmp(got, expected, count * bytes_of(type)) == 0) return testing::AssertionSuccess();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * bytes_of(type);
    if (std::memcmp(got + at, expected + at, bytes_of(type)) == 0) continue;
    const std::vector<std::byte> a(got + at, got + at + bytes_of(type));
    const std::vector<std::byte> b(expected + at, expected + at + bytes_of(type));
    const float x = unpacked(a, type)[0];
    const float y = unpacked(b, type)[0];
    if (!(std::isnan(x) && std::isnan(y))) {
      return testing::AssertionFailure() << "element " << i << " is " << x << ", not " << y;
    }
  }
  return testing::AssertionSuccess();
}

struct TransferShape {
  KvShape kv;
  DType page_type = DType::bf16;
  std::uint32_t blocks = 3;
  std::uint32_t first_layer = 0;
  std::uint32_t layers = 1;
  std::uint32_t thread_blocks = 0;
  Where records = Where::hbm;
};

class TransferBlocks {
 public:
  static constexpr std::byte kRecordPoison{0xA5};
  static constexpr std::byte kPagePoison{0xFF};

  explicit TransferBlocks(const TransferShape& shape)
      : shape_(shape),
        layout_(shape.kv.layout()),
        k_bytes_(shape.kv.k_page_elements() * bytes_of(shape.page_type)),
        v_bytes_(shape.kv.v_page_elements() * bytes_of(shape.page_type)),
        pages_(pieces() * (k_bytes_ + v_bytes_) + kGuard) {
    const std::size_t bytes = shape.blocks * layout_.record_bytes;
    if (shape.records == Where::hbm) {
      hbm_records_ = DeviceArray<std::byte>(bytes);
    } else {
      pinned_records_ = std::make_unique<PinnedMemfd>(bytes);
    }
    set_records(std::vector<std::byte>(bytes, kRecordPoison));
    set_pages(std::vector<std::byte>(pages_.bytes(), kPagePoison));
    std::vector<void*> k, v;
    for (std::size_t piece = 0; piece < pieces(); ++piece) {
      k.push_back(pages_.get() + k_at(piece));
      v.push_back(pages_.get() + v_at(piece));
    }
    std::vector<std::byte*> records;
    for (std::uint32_t i = 0; i < shape.blocks; ++i) {
      records.push_back(records_on_device() + i * layout_.record_bytes);
    }
    k_pages_ = DeviceArray<void*>(k);
    v_pages_ = DeviceArray<void*>(v);
    record_pointers_ = DeviceArray<std::byte*>(records);
    for (std::uint32_t i = 0; i < shape.layers; ++i) {
      const LayerLayout layer = layout_.layer(shape.first_layer + i);
      const std::size_t at = std::size_t{i} * shape.blocks;
      layers_.push_back({layer, head_major(k_pages_.get() + at, layer, false, shape.page_type),
                         head_major(v_pages_.get() + at, layer, true, shape.page_type)});
    }
  }

  const RecordLayout& layout() const { return layout_; }
  std::size_t pieces() const { return std::size_t{shape_.layers} * shape_.blocks; }
  std::byte* records_on_device() const {
    return pinned_records_ ? pinned_records_->device() : hbm_records_.get();
  }
  std::byte* const* record_pointers() const { return record_pointers_.get(); }

  TransferArgs args() const {
    return {.layers = layers_,
            .blocks = shape_.blocks,
            .records = record_pointers_.get(),
            .page_type = shape_.page_type,
            .page_tokens = layout_.block_tokens,
            .thread_blocks = shape_.thread_blocks};
  }

  // Host copies: all records, one after another; all pages, K and V of a piece together, then a
  // guard.
  std::vector<std::byte> records() const {
    if (!pinned_records_) return hbm_records_.download();
    return {pinned_records_->host(), pinned_records_->host() + pinned_records_->bytes()};
  }
  void set_records(const std::vector<std::byte>& bytes) {
    if (pinned_records_) {
      std::memcpy(pinned_records_->host(), bytes.data(), bytes.size());
    } else {
      hbm_records_.upload(bytes);
    }
  }
  std::vector<std::byte> pages() const { return pages_.download(); }
  void set_pages(const std::vector<std::byte>& bytes) { pages_.upload(bytes); }
  std::vector<std::byte> random_pages(unsigned seed, bool specials) const {
    std::vector<std::byte> bytes;
    const KvShape& kv = shape_.kv;
    for (unsigned piece = 0; piece < pieces(); ++piece) {
      const auto k = random_heads(kv.kv_heads, std::size_t{kv.block_tokens} * kv.head_dim_k,
                                  shape_.page_type, seed + 2 * piece, specials);
      const auto v = random_heads(kv.kv_heads, std::size_t{kv.block_tokens} * kv.head_dim_v,
                                  shape_.page_type, seed + 2 * piece + 1, specials);
      bytes.insert(bytes.end(), k.begin(), k.end());
      bytes.insert(bytes.end(), v.begin(), v.end());
    }
    bytes.resize(pages_.bytes(), kPagePoison);
    return bytes;
  }

  // The CPU twin on host copies, every layer of the call.
  void twin(std::vector<std::byte>& records, std::vector<std::byte>& pages, bool into_records) {
    std::vector<std::byte*> record_pages;
    for (std::uint32_t i = 0; i < shape_.blocks; ++i) {
      record_pages.push_back(records.data() + i * layout_.record_bytes);
    }
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      std::vector<void*> k, v;
      for (std::uint32_t i = 0; i < shape_.blocks; ++i) {
        k.push_back(pages.data() + k_at(layer * shape_.blocks + i));
        v.push_back(pages.data() + v_at(layer * shape_.blocks + i));
      }
      const LayerLayout place = layout_.layer(shape_.first_layer + layer);
      const BlockLayerArgs block_args{
          .layout = &place,
          .blocks = shape_.blocks,
          .page_tokens = layout_.block_tokens,
          .page_type = shape_.page_type,
          .k = kernels::head_major(k.data(), layout_.block_tokens, layout_.head_dim_k,
                                   shape_.page_type),
          .v = kernels::head_major(v.data(), layout_.block_tokens, layout_.head_dim_v,
                                   shape_.page_type),
          .records = record_pages.data()};
      const KernelTable& cpu = cpu_kernels();
      (into_records ? cpu.quantise_and_scatter : cpu.gather_and_dequantise)(block_args);
    }
  }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t k_at(std::size_t piece) const { return piece * (k_bytes_ + v_bytes_); }
  std::size_t v_at(std::size_t piece) const { return k_at(piece) + k_bytes_; }

  TransferShape shape_;
  RecordLayout layout_;
  std::size_t k_bytes_, v_bytes_;
  DeviceArray<std::byte> pages_;
  DeviceArray<std::byte> hbm_records_;
  std::unique_ptr<PinnedMemfd> pinned_records_;
  DeviceArray<void*> k_pages_, v_pages_;
  DeviceArray<std::byte*> record_pointers_;
  std::vector<TransferLayer> layers_;
};

}  // namespace kvtier::kernels::cuda
