#include "bench/gpu/client_layouts.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

#include "bench/support/pool_layouts.h"

namespace kvtier::bench {
namespace {

using kernels::cuda::DeviceArray;

constexpr std::uint32_t kBlocks = 1024;         // 16,384 tokens a prompt
constexpr std::uint32_t kPoolBlocks = 2048;     // of an engine, in whose pages prompts are anywhere
constexpr std::uint32_t kSlotsAhead = 1024;     // the most there may be
constexpr std::uint32_t kStoredAtOnce = 512;    // half are at hand, half being asked for
constexpr std::uint32_t kRoundsNotCounted = 2;  // in which the card wakes up
constexpr std::uint32_t kPromptsToFill = 10'000;  // numbers from here on, of which no more is asked
constexpr double kTokens = double{kBlocks} * kBlockTokens;

// What pages of a model hold.
struct Model {
  const char* name;
  std::uint32_t layers;
  PageShape shape;
  std::vector<Layout> layouts;
};

std::vector<Model> models() {
  return {{"8b",
           32,
           {8, 128, 128},
           {Layout::apart_nhd, Layout::beside_nhd, Layout::apart_hnd, Layout::all_layers}},
          {"latent", 61, {1, 576, 0}, {Layout::apart_nhd}}};
}

Namespace namespace_of(const Model& model, StorageFormat format) {
  Namespace ns;
  ns.model = std::string("kvtier-client-bench-") + model.name;
  ns.layers = model.layers;
  ns.kv_heads = model.shape.heads;
  ns.head_dim_k = model.shape.dim_k;
  ns.head_dim_v = model.shape.dim_v;
  ns.block_tokens = kBlockTokens;
  ns.format = format;
  ns.positions = "rope";
  if (format == StorageFormat::raw) {
    ns.raw_bytes = raw_bytes_of(kBlockTokens, model.shape.heads, model.shape.dim_k,
                                model.shape.dim_v, DType::bf16);
    ns.page_layout = "bf16 pages of one layer";
  }
  return ns;
}

// An engine's pool in BF16, and pages of it in no order.
class EnginePool {
 public:
  EnginePool(const Model& model, Layout layout, const Namespace& ns)
      : plan_(layout, std::vector(model.layers, model.shape), kBlockTokens, DType::bf16,
              kPoolBlocks),
        memory_(plan_.bytes()),
        pool_(need(PagePool::of(ns, plan_.at(memory_.get())))),
        numbers_(pool_.pages()) {
    memory_.fill_bytes(0x3C);  // small numbers
    std::iota(numbers_.begin(), numbers_.end(), 0);
    std::ranges::shuffle(numbers_, std::mt19937(1));
    numbers_.resize(std::size_t{kBlocks} * pool_.pages_of_block());
  }
  // Of blocks [first, first + count) of a prompt.
  Pages pages(std::uint32_t first, std::uint32_t count) const {
    const std::size_t each = pool_.pages_of_block();
    Pages pages;
    pages.pool = &pool_;
    pages.numbers = std::span(numbers_).subspan(first * each, count * each);
    return pages;
  }

 private:
  const PoolPlan plan_;
  DeviceArray<std::byte> memory_;
  const PagePool pool_;
  std::vector<std::uint32_t> numbers_;
};

// One model and format with a daemon of its own, whose host tier is full.
class Measure {
 public:
  Measure(const ClientSetup& setup, const Model& model, StorageFormat format, std::uint32_t rounds,
          PlainCopy& plain)
      : model_(model),
        ns_(namespace_of(model, format)),
        layout_(RecordLayout::of(ns_)),
        rounds_(rounds),
        plain_(plain),
        daemon_(setup, options(), ns_) {
    const EnginePool pool(model_, model_.layouts.front(), ns_);
    for (std::uint32_t i = 0; i < prompts(); ++i) store(pool, kPromptsToFill + i);
  }

  struct Rates {
    double store, load;         // bytes per second
    double to_host, from_host;  // of the plain copy
    double tokens;              // per second, loaded
  };
  Rates run(Layout layout, std::uint32_t first_prompt) {
    const EnginePool pool(model_, layout, ns_);
    std::vector<double> stored, loaded, to_host, from_host;
    for (std::uint32_t i = 0; i < kRoundsNotCounted + rounds_; ++i) {
      to_host.push_back(plain_.run(cudaMemcpyDeviceToHost));
      const double seconds = store(pool, first_prompt + i);
      if (i >= kRoundsNotCounted) stored.push_back(bytes() / seconds);
    }
    for (std::uint32_t i = 0; i < rounds_; ++i) {
      from_host.push_back(plain_.run(cudaMemcpyHostToDevice));
      loaded.push_back(bytes() / load(pool, first_prompt + kRoundsNotCounted + i));
    }
    const double load_rate = median(loaded);
    return {median(stored), load_rate, median(to_host), median(from_host),
            load_rate / bytes() * kTokens};
  }

 private:
  // What is loaded again, and the slots ahead.
  std::uint32_t prompts() const { return rounds_ + kRoundsNotCounted + kSlotsAhead / kBlocks + 1; }
  DaemonChild::Options options() const {
    const std::uint64_t wanted = prompts() * kBlocks * layout_.record_bytes;
    return {.host_capacity = std::to_string(wanted / 1_GiB + 1) + "GiB",
            .host_extent = "1GiB",
            .disk_capacity = "",
            .device_capacity = "0",
            .policy = "lru"};  // what is loaded is what was stored last
  }
  // Of what the engine's pages become, without headers.
  double bytes() const { return double{kBlocks} * static_cast<double>(layout_.payload_bytes); }
  static std::vector<Token> prompt_number(std::uint32_t number) {
    return prompt(number, std::size_t{kBlocks} * kBlockTokens + 1);
  }

  double store(const EnginePool& pool, std::uint32_t number) {
    const auto tokens = prompt_number(number);
    // As an engine that goes on computing has it: the second half is offered while the first goes.
    const auto begin = Clock::now();
    std::vector<WriteBack> writes;
    for (std::uint32_t first = 0; first < kBlocks; first += kStoredAtOnce)
      writes.push_back(daemon_.cache->write_back(tokens, first, pool.pages(first, kStoredAtOnce)));
    std::uint32_t accepted = 0;
    for (WriteBack& write : writes) {
      while (!write.ended()) std::this_thread::sleep_for(std::chrono::microseconds(10));
      accepted += write.accepted();
    }
    const double seconds = seconds_since(begin);
    need(daemon_.client->flush(soon()));
    if (number < kPromptsToFill && accepted != kBlocks) {
      throw std::runtime_error("only " + std::to_string(accepted) + " of " +
                               std::to_string(kBlocks) + " blocks were taken");
    }
    return seconds;
  }

  double load(const EnginePool& pool, std::uint32_t number) {
    auto lease = need(daemon_.cache->lease(prompt_number(number), kBlocks, soon()));
    if (lease.wait_ready(soon()) != kBlocks || lease.source(0) != Tier::host)
      throw std::runtime_error("the blocks are not where they should be");
    const auto begin = Clock::now();
    auto load = need(lease.load_into(pool.pages(0, kBlocks)));
    if (load.finish() != kBlocks) throw std::runtime_error("a load did not hold");
    return seconds_since(begin);
  }

  const Model& model_;
  const Namespace ns_;
  const RecordLayout layout_;
  const std::uint32_t rounds_;
  PlainCopy& plain_;
  ClientOfDaemon daemon_;
};

}  // namespace

void measure_layouts(ClientSetup setup, std::uint32_t rounds, Report& report) {
  setup.slots_ahead = kSlotsAhead;
  PlainCopy plain;
  for (const Model& model : models()) {
    std::map<Layout, double> fp8_tokens;
    for (const StorageFormat format :
         {StorageFormat::fp8_e4m3, StorageFormat::raw, StorageFormat::int4}) {
      const ScratchDirectory scratch(setup.directory);
      ClientSetup own = setup;
      own.directory = scratch.path();
      Measure measure(own, model, format, rounds, plain);
      std::uint32_t first_prompt = 0;
      for (const Layout layout : model.layouts) {
        const auto rates = measure.run(layout, first_prompt);
        first_prompt += 100;
        const std::string row = std::string("gpu.layouts.") + model.name + "." + name(layout) +
                                "." + kvtier::name(format);
        report.add(row + ".store", rates.store / 1e9, "GB/s", rates.to_host / 1e9);
        report.add(row + ".load", rates.load / 1e9, "GB/s", rates.from_host / 1e9);
        if (format == StorageFormat::fp8_e4m3) {
          fp8_tokens[layout] = rates.tokens;
          report.add(row + ".load.tokens", rates.tokens / 1e6, "M/s");
        } else {
          report.add(row + ".load.tokens", rates.tokens / 1e6, "M/s", fp8_tokens[layout] / 1e6);
        }
      }
    }
  }
}

}  // namespace kvtier::bench
