// Llama-3.1-8B.
#pragma once

#include <cstdint>

#include "kvtier/namespace.h"
#include "kvtier/record_layout.h"

namespace kvtier::bench {

struct Llama8B {
  static constexpr std::uint32_t kLayers = 32;
  static constexpr std::uint32_t kHeads = 32;
  static constexpr std::uint32_t kKvHeads = 8;
  static constexpr std::uint32_t kHeadDim = 128;
  static constexpr std::uint32_t kHidden = 4096;
  static constexpr std::uint32_t kInner = 14336;
  static constexpr std::uint32_t kVocabulary = 128256;
  static constexpr std::uint32_t kBlockTokens = 16;

  static RecordLayout layout(StorageFormat format = StorageFormat::fp8_e4m3) {
    Namespace ns;
    ns.format = format;
    ns.layers = kLayers;
    ns.kv_heads = kKvHeads;
    ns.head_dim_k = ns.head_dim_v = kHeadDim;
    ns.block_tokens = kBlockTokens;
    return RecordLayout::of(ns);
  }
};

}  // namespace kvtier::bench
