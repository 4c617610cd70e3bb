#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>

#include "bench/tiers/connected.h"
#include "bench/tiers/disk_turns.h"
#include "core/base/units.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr std::uint32_t kBlocks = 32;  // of a prompt
constexpr std::uint32_t kLeasesAhead = 3;
// One request in so many is for a prompt that was asked for before.
constexpr std::uint64_t kAgainIn = 3;
constexpr std::uint64_t kDiskOverHost = 10;  // capacities
constexpr std::uint64_t kHostMin = 512ULL << 20;

Deadline soon() {
  return steady_clock::now() + 60s;
}

// An engine of one model: prompts of records of one size, each of which says whose it is.
class Model {
 public:
  // `share_bytes`: prompts of that many together are asked for again.
  Model(const std::shared_ptr<Client>& client, std::uint64_t record_bytes,
        std::uint64_t share_bytes)
      : ns_(namespace_of_records(record_bytes)),
        layout_(RecordLayout::of(ns_)),
        cache_(need(client->open(ns_))),
        memory_(kBlocks * record_bytes, std::byte{5}),
        in_use_max_(std::max<std::size_t>(share_bytes / memory_.size(), 1)) {
    for (std::uint32_t block = 0; block < kBlocks; ++block)
      records_.push_back(memory_.data() + block * record_bytes);
    need(cache_->wait_open(soon()));
  }

  std::uint64_t record_bytes() const noexcept { return layout_.record_bytes; }
  const std::deque<std::uint64_t>& in_use() const noexcept { return in_use_; }

  // Blocks behind the first `from` go to the cache. False: not all of them were taken.
  bool write(std::uint64_t number, std::uint32_t from = 0) {
    for (std::uint32_t block = from; block < kBlocks; ++block)
      for (const std::size_t at : marks())
        std::memcpy(records_[block] + at, &number, sizeof number);
    auto write =
        cache_->write_back(tokens_of(number), from, pages(from), {}, steady_clock::now() + 5s);
    write.wait();
    return write.accepted() + write.cached() == kBlocks - from;
  }

  // A prompt that nobody has asked for yet is the newest of those that are asked for again.
  void note(std::uint64_t number) {
    in_use_.push_back(number);
    if (in_use_.size() > in_use_max_) in_use_.pop_front();
  }

  // Leading blocks that are there.
  std::uint32_t found(std::uint64_t number) const {
    return cache_->match(tokens_of(number)).blocks;
  }

  struct Loaded {
    std::uint32_t blocks = 0;
    std::uint32_t wrong = 0;  // of those, how many were of another prompt
  };
  Loaded load(std::uint64_t number) {
    auto leased = lease(number);
    if (leased.wait_ready(soon()) == 0) return {};
    std::ranges::fill(memory_, std::byte{0});
    auto load = need(leased.load_into(pages()));
    Loaded loaded{.blocks = load.finish()};
    for (std::uint32_t block = 0; block < loaded.blocks; ++block)
      loaded.wrong += !is_of(block, number);
    return loaded;
  }

  Lease lease(std::uint64_t number) {
    return need(cache_->lease(tokens_of(number), kBlocks, soon()));
  }

 private:
  static std::vector<Token> tokens_of(std::uint64_t number) {
    return prompt(number, std::size_t{kBlocks} * kBlockTokens + 1);
  }
  Pages pages(std::uint32_t first = 0) const {
    return {.records = std::span(records_).subspan(first), .k_pages = {}, .v_pages = {}};
  }
  // Where in a record its prompt's number stands.
  std::array<std::size_t, 2> marks() const noexcept {
    return {layout_.header_bytes, layout_.record_bytes - sizeof(std::uint64_t)};
  }
  bool is_of(std::uint32_t block, std::uint64_t number) const {
    return std::ranges::all_of(marks(), [&](std::size_t at) {
      return std::memcmp(records_[block] + at, &number, sizeof number) == 0;
    });
  }

  const Namespace ns_;
  const RecordLayout layout_;
  std::shared_ptr<Cache> cache_;
  std::vector<std::byte> memory_;
  std::vector<std::byte*> records_;
  const std::size_t in_use_max_;
  std::deque<std::uint64_t> in_use_;  // prompts, the oldest first
};

class Ageing {
 public:
  Ageing(const AgeOptions& options, const std::filesystem::path& directory, Report& report)
      : options_(options),
        report_(report),
        raw_(directory / "raw", options.bytes / 2),
        daemon_(options.kvtierd, directory,
                {std::to_string(std::max(options.bytes / kDiskOverHost, kHostMin)), "64MiB",
                 std::to_string(options.bytes)}) {
    client_ = connected(daemon_, "kvtier-bench age");
    for (const std::uint64_t size : options.sizes)
      models_.try_emplace(size, client_, size, options.bytes / options.sizes.size());
  }

  void run() {
    Model& measured = models_.at(options_.measured);
    for (std::uint64_t bytes = 0; bytes < options_.bytes + options_.bytes / 8;
         bytes += kBlocks * measured.record_bytes())
      ask_anew(measured);
    measure("fresh", measured);
    churn();
    measure("aged", measured);
  }

 private:
  // Requests of all models at random: what each asks for does not depend on what is there, and what
  // is not there is computed and written, as an engine does.
  void churn() {
    written_bytes_ = refused_ = 0;
    const auto begin = steady_clock::now();
    while (seconds_since(begin) < options_.age_seconds) {
      Model& model = std::next(models_.begin(), random(models_.size()))->second;
      if (model.in_use().empty() || random(kAgainIn) != 0) {
        ask_anew(model);
      } else {
        ask_again(model);
      }
    }
    need(client_->flush(steady_clock::now() + 600s));
    report_.add("age.written", static_cast<double>(written_bytes_) / 1e9, "GB",
                static_cast<double>(options_.bytes) / 1e9);
    report_.add("age.prompts_refused", static_cast<double>(refused_), "prompts");
    report_.add("age.found", static_cast<double>(found_), "blocks", static_cast<double>(asked_));
    report_.add("age.wrong", static_cast<double>(wrong_), "blocks", static_cast<double>(found_));
    report_prefixes();
  }

  void ask_anew(Model& model) {
    model.note(next_);
    write(model, next_++, 0);
  }

  void ask_again(Model& model) {
    const std::uint64_t number = model.in_use()[random(model.in_use().size())];
    const auto loaded = model.load(number);
    asked_ += kBlocks;
    found_ += loaded.blocks;
    wrong_ += loaded.wrong;
    if (loaded.blocks < kBlocks) write(model, number, loaded.blocks);
  }

  void write(Model& model, std::uint64_t number, std::uint32_t from) {
    if (model.write(number, from)) {
      written_bytes_ += (kBlocks - from) * model.record_bytes();
    } else {
      ++refused_;
    }
  }

  // Of the prompts in use of which anything is there, those that are there whole.
  void report_prefixes() {
    std::uint64_t whole = 0, left = 0;
    for (auto& [size, model] : models_) {
      for (const std::uint64_t number : model.in_use()) {
        const std::uint32_t blocks = model.found(number);
        whole += blocks == kBlocks;
        left += blocks != 0;
      }
    }
    report_.add("age.whole_prompts", static_cast<double>(whole), "prompts",
                static_cast<double>(left));
  }

  void measure(const std::string& when, Model& model) {
    for (const auto direction : {Direction::read, Direction::write}) {
      const bool reads = direction == Direction::read;
      report_turns("age." + when + (reads ? ".read" : ".write"), raw_, direction,
                   model.record_bytes(), options_.turns, report_,
                   [&] { return reads ? read_rate(model) : write_rate(model); });
    }
  }

  // From disk to host memory, each prompt once.
  double read_rate(Model& model) {
    daemon_.drop(TierSet().with(Tier::host));
    std::vector<std::uint64_t> numbers(model.in_use().begin(), model.in_use().end());
    std::erase_if(numbers, [&](std::uint64_t number) { return model.found(number) == 0; });
    if (numbers.empty())
      throw std::runtime_error("nothing of the measured model is left on disk: give more --bytes");
    std::deque<Lease> leases;
    std::uint64_t blocks = 0;
    const auto begin = steady_clock::now();
    const auto land = [&] {
      blocks += leases.front().wait_ready(soon());
      leases.pop_front();
    };
    while (seconds_since(begin) < options_.turns.seconds && !numbers.empty()) {
      std::swap(numbers[random(numbers.size())], numbers.back());
      leases.push_back(model.lease(numbers.back()));
      numbers.pop_back();
      if (leases.size() > kLeasesAhead) land();
    }
    while (!leases.empty()) land();
    return static_cast<double>(blocks * model.record_bytes()) / seconds_since(begin);
  }

  // New prompts until the last of them is on disk.
  double write_rate(Model& model) {
    const std::uint64_t before = daemon_.disk_insertions();
    const auto begin = steady_clock::now();
    while (seconds_since(begin) < options_.turns.seconds) ask_anew(model);
    need(client_->flush(soon()));
    return static_cast<double>((daemon_.disk_insertions() - before) * model.record_bytes()) /
           seconds_since(begin);
  }

  std::uint64_t random(std::uint64_t below) { return (random_ = mixed(random_)) % below; }

  const AgeOptions& options_;
  Report& report_;
  RawDisk raw_;
  DaemonChild daemon_;
  std::shared_ptr<Client> client_;
  std::map<std::uint64_t, Model> models_;  // by the size of their records
  std::uint64_t next_ = 1;
  std::uint64_t written_bytes_ = 0, refused_ = 0;    // prompts
  std::uint64_t asked_ = 0, found_ = 0, wrong_ = 0;  // blocks
  std::uint64_t random_ = 1;
};

}  // namespace

void measure_ageing(const AgeOptions& options, Report& report) {
  if (std::ranges::find(options.sizes, options.measured) == options.sizes.end())
    throw std::runtime_error("--measured is none of the sizes: give it as a --size too");
  const ScratchDirectory scratch(options.directory);
  Ageing(options, scratch.path(), report).run();
}

}  // namespace kvtier::bench
