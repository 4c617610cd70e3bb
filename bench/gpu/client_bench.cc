// kvtier-client-bench: what the client on a GPU moves in a second, beside one plain copy over the
// same link and a bare loop on the same disk.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <optional>
#include <stdexcept>

#include "bench/gpu/client_layouts.h"
#include "bench/gpu/client_setup.h"
#include "bench/support/program.h"
#include "bench/support/raw_disk.h"
#include "bench/support/report.h"

namespace kvtier::bench {
namespace {

using kernels::cuda::check;
using kernels::cuda::DeviceArray;

struct Options {
  std::string kvtierd;
  std::filesystem::path directory;
  std::uint32_t device = 0;
  std::uint32_t blocks = 512;  // half of the slots at hand: the other half is being asked for
  std::uint32_t rounds = 7;
  bool disk = true;
  bool layouts = false;
};

// Llama-3.1-8B: a record of 16 tokens is 1 MiB and a header.
Namespace llama_8b() {
  Namespace ns;
  ns.model = "kvtier-client-bench";
  ns.layers = 32;
  ns.kv_heads = 8;
  ns.head_dim_k = ns.head_dim_v = 128;
  ns.block_tokens = kBlockTokens;
  ns.format = StorageFormat::fp8_e4m3;
  ns.positions = "rope";
  return ns;
}

// An engine's pages of `blocks` blocks: records, or K and V in BF16.
class EnginePages {
 public:
  EnginePages(const RecordLayout& layout, std::uint32_t blocks, bool records)
      : memory_(records ? blocks * layout.record_bytes : 2 * blocks * layout.payload_bytes) {
    memory_.fill_bytes(0x3C);  // small numbers in either form
    const std::size_t page =
        std::size_t{layout.kv_heads} * layout.block_tokens * layout.head_dim_k * 2;
    for (std::size_t i = 0; records && i < blocks; ++i)
      records_.push_back(memory_.get() + i * layout.record_bytes);
    for (std::size_t i = 0; !records && i < std::size_t{layout.layers} * blocks; ++i) {
      k_.push_back(memory_.get() + 2 * i * page);
      v_.push_back(memory_.get() + (2 * i + 1) * page);
    }
  }
  Pages pages() const {
    Pages pages;
    pages.records = records_;
    pages.k_pages = k_;
    pages.v_pages = v_;
    pages.type = DType::bf16;
    return pages;
  }

 private:
  DeviceArray<std::byte> memory_;
  std::vector<std::byte*> records_;
  std::vector<void*> k_, v_;
};

class Bench {
 public:
  // How many prompts fill the host tier: those that are loaded again, and the slots reserved ahead.
  static constexpr std::uint32_t kHostPrompts = 11;

  Bench(const Options& options, Report& report, const std::filesystem::path& directory)
      : options_(options), report_(report), directory_(directory) {}

  void run() {
    {
      const Daemon daemon(*this, "0");
      fill_host(daemon);
      for (const bool records : {true, false}) {
        const EnginePages pages(layout_, options_.blocks, records);
        const std::string kind = records ? ".records" : ".kv";
        write_back(daemon, pages, "gpu.write_back" + kind, records ? 0U : 100U);
        load(daemon, pages, "gpu.load.host" + kind, records ? 0U : 100U);
      }
      if (options_.disk) load_from_disk(daemon);
    }
    const Daemon daemon(*this, std::to_string(options_.blocks * 2) + "MiB");
    hbm(daemon);
  }

 private:
  struct Daemon : ClientOfDaemon {
    Daemon(const Bench& bench, const std::string& device_capacity)
        : ClientOfDaemon(
              {.kvtierd = bench.options_.kvtierd,
               .directory = bench.directory_,
               .device = bench.options_.device},
              {.host_capacity = std::to_string(kHostPrompts * bench.options_.blocks) + "MiB",
               .host_extent = "1GiB",
               .disk_capacity = bench.options_.disk ? "16GiB" : "",
               .device_capacity = device_capacity,
               .policy = "lru"},  // what is loaded is what was stored last
              llama_8b()) {}
  };

  double bytes() const {
    return static_cast<double>(options_.blocks) * static_cast<double>(layout_.record_bytes);
  }
  std::vector<Token> prompt_number(std::uint32_t number) const {
    return prompt(number, std::size_t{options_.blocks} * kBlockTokens + 1);
  }
  void add(const std::string& name, std::vector<double> ours, std::vector<double> plain) {
    report_.add(name, median(ours) / 1e9, "GB/s", median(plain) / 1e9);
  }

  // The daemon's memory comes to be as it fills, and is pinned after that. What is measured later
  // is a tier that is full, as it is for all but a daemon's first minute.
  void fill_host(const Daemon& daemon) {
    const EnginePages pages(layout_, options_.blocks, true);
    std::vector<double> rates;
    for (std::uint32_t i = 0; i < kHostPrompts; ++i) {
      const auto begin = Clock::now();
      auto write = daemon.cache->write_back(prompt_number(1000 + i), 0, pages.pages());
      write.wait();
      const double share = static_cast<double>(write.accepted()) / options_.blocks;
      rates.push_back(share * bytes() / seconds_since(begin));
      need(daemon.client->flush(soon()));
    }
    report_.add("gpu.write_back.memory_in_first_use", median(rates) / 1e9, "GB/s");
  }

  // Each round writes a prompt of its own; the first, in which the card wakes up, do not count.
  void write_back(const Daemon& daemon, const EnginePages& pages, const std::string& name,
                  std::uint32_t first_prompt) {
    std::vector<double> ours, plain;
    for (std::uint32_t round = 0; round < options_.rounds + 2; ++round) {
      plain.push_back(plain_.run(cudaMemcpyDeviceToHost));
      const auto tokens = prompt_number(first_prompt + round);
      const auto begin = Clock::now();
      auto write = daemon.cache->write_back(tokens, 0, pages.pages());
      write.wait();
      const double rate = bytes() / seconds_since(begin);
      if (write.accepted() != options_.blocks) {
        throw std::runtime_error("only " + std::to_string(write.accepted()) + " of " +
                                 std::to_string(options_.blocks) + " blocks were taken");
      }
      need(daemon.client->flush(soon()));
      if (round >= 2) ours.push_back(rate);
    }
    add(name, ours, plain);
  }

  double load_once(const Daemon& daemon, const EnginePages& pages, std::uint32_t number, Tier from,
                   double* call = nullptr) {
    auto lease = need(daemon.cache->lease(prompt_number(number), options_.blocks, soon()));
    if (lease.wait_ready(soon()) != options_.blocks || lease.source(0) != from)
      throw std::runtime_error("the blocks are not where they should be");
    const auto begin = Clock::now();
    auto load = need(lease.load_into(pages.pages()));
    if (call != nullptr) *call = seconds_since(begin);
    if (load.finish() != options_.blocks) throw std::runtime_error("a load did not hold");
    return bytes() / seconds_since(begin);
  }

  void load(const Daemon& daemon, const EnginePages& pages, const std::string& name,
            std::uint32_t first_prompt) {
    std::vector<double> ours, plain, calls;
    for (std::uint32_t round = 0; round < options_.rounds; ++round) {
      plain.push_back(plain_.run(cudaMemcpyHostToDevice));
      double call = 0;
      ours.push_back(load_once(daemon, pages, first_prompt + 2 + round, Tier::host, &call));
      calls.push_back(call);
    }
    add(name, ours, plain);
    report_.add(name + ".call", median(calls) * 1e6, "us");
  }

  // From the lease on: the disk's reads and the copy.
  void load_from_disk(const Daemon& daemon) {
    const EnginePages pages(layout_, options_.blocks, true);
    RawDisk raw(directory_ / "raw", 4_GiB);
    std::vector<double> ours, plain;
    for (std::uint32_t round = 0; round < std::min(options_.rounds, 3U); ++round) {
      plain.push_back(raw.run(Direction::read, 1U << 20, 0.5));
      need(daemon.client->flush(soon()));
      daemon.child.drop(TierSet{}.with(Tier::host));
      const auto begin = Clock::now();
      load_once(daemon, pages, 2 + round, Tier::disk);
      ours.push_back(bytes() / seconds_since(begin));
    }
    add("gpu.load.disk", ours, plain);
  }

  // Hits in HBM: to the engine's pages, beside a plain copy in HBM, and in place.
  void hbm(const Daemon& daemon) {
    const EnginePages pages(layout_, options_.blocks, true);
    const auto tokens = prompt_number(200);
    daemon.cache->write_back(tokens, 0, pages.pages()).wait();
    need(daemon.client->flush(soon()));
    // There are not slots at hand for all of them at once: the rest is promoted by loads.
    for (std::uint32_t left = 200; in_hbm(daemon, tokens) < options_.blocks; --left) {
      if (left == 0) {
        throw std::runtime_error("of " + std::to_string(options_.blocks) + " blocks only " +
                                 std::to_string(in_hbm(daemon, tokens)) + " come to be in HBM");
      }
      load_where(daemon, tokens, pages.pages());
      need(daemon.client->flush(soon()));
    }
    DeviceArray<std::byte> plain_to(1_GiB), plain_from(1_GiB);
    std::vector<double> copied, plain, in_place;
    for (std::uint32_t round = 0; round < options_.rounds; ++round) {
      const auto begin = Clock::now();
      check(cudaMemcpyAsync(plain_to.get(), plain_from.get(), plain_to.bytes(),
                            cudaMemcpyDeviceToDevice, nullptr),
            "cudaMemcpyAsync");
      check(cudaStreamSynchronize(nullptr), "cudaMemcpyAsync");
      plain.push_back(static_cast<double>(plain_to.bytes()) / seconds_since(begin));
      copied.push_back(bytes() / load_where(daemon, tokens, pages.pages()));
      Pages where = pages.pages();
      where.in_place = true;
      in_place.push_back(load_where(daemon, tokens, where));
    }
    add("gpu.load.hbm.records", copied, plain);
    report_.add("gpu.load.hbm.in_place", median(in_place) * 1e6, "us");
  }

  std::uint32_t in_hbm(const Daemon& daemon, const std::vector<Token>& tokens) const {
    return daemon.cache->match(tokens).per_tier[index_of(Tier::device)];
  }

  // Seconds from the lease to the end of the load.
  double load_where(const Daemon& daemon, const std::vector<Token>& tokens, const Pages& where) {
    const auto begin = Clock::now();
    auto lease = need(daemon.cache->lease(tokens, options_.blocks, soon()));
    lease.wait_ready(soon());
    auto load = need(lease.load_into(where));
    if (load.finish() != options_.blocks) throw std::runtime_error("a load did not hold");
    return seconds_since(begin);
  }

  const Options& options_;
  Report& report_;
  const std::filesystem::path directory_;
  const RecordLayout layout_ = RecordLayout::of(llama_8b());
  PlainCopy plain_;
};

int run(int argc, char** argv) {
  Options options;
  options.directory = std::filesystem::temp_directory_path();
  options.kvtierd = kvtierd_beside();
  CLI::App app{"What the client on a GPU moves, beside one plain copy.", "kvtier-client-bench"};
  app.add_option("--kvtierd", options.kvtierd, "The daemon to measure with")
      ->check(CLI::ExistingFile);
  app.add_option("--dir", options.directory, "Where to keep the daemon's disk tier")
      ->check(CLI::ExistingDirectory);
  app.add_option("--device", options.device, "The GPU")->capture_default_str();
  app.add_option("--blocks", options.blocks, "Blocks of 1 MiB a prompt")
      ->check(CLI::Range(16U, 512U))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Of each; the median counts")
      ->check(CLI::Range(1U, 9U))
      ->capture_default_str();
  app.add_flag("!--no-disk", options.disk, "Leave the disk out");
  app.add_flag("--layouts", options.layouts,
               "Instead: page pools of the layouts of engines, by format of the records");
  return run_program(app, argc, argv, [&](Report& report) {
    const ScratchDirectory scratch(options.directory);
    check(cudaSetDevice(static_cast<int>(options.device)), "cudaSetDevice");
    if (options.layouts) {
      const ClientSetup setup{
          .kvtierd = options.kvtierd, .directory = scratch.path(), .device = options.device};
      return measure_layouts(setup, std::min(options.rounds, 5U), report);
    }
    Bench(options, report, scratch.path()).run();
  });
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  return kvtier::bench::run(argc, argv);
}
