#include "client/cuda/cuda_load.h"

#include <algorithm>
#include <cstring>

#include "client/session/limits.h"
#include "client/transfer/proven_blocks.h"
#include "core/base/units.h"
#include "core/record/record.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/kernels.h"

namespace kvtier::transfer {

using kernels::cuda::check;
using session::HeldBlocks;

namespace {

// They fill the link and leave the rest of the card to compute.
constexpr std::uint32_t kFarThreadBlocks = 16;
// So that a launch's start and end are small beside its copy.
constexpr std::uint64_t kGroupBytes = 8_MiB;
// Of one record: where the copy engine has come up to its rate.
constexpr std::uint64_t kRowBytes = 128_KiB;
// Records in host memory that is not pinned, on their way through memory that is.
constexpr std::size_t kStagedRecords = 8;

}  // namespace

Result<std::shared_ptr<Loading>> CudaLoad::start(std::shared_ptr<CudaGpu> gpu,
                                                 std::shared_ptr<HeldBlocks> hold, PageTable pages,
                                                 StreamView stream, Gpu::Landed landed) {
  auto load = std::make_shared<CudaLoad>(std::move(gpu), std::move(hold), std::move(pages),
                                         std::move(landed));
  Result<void> started;
  try {
    started = load->begin_copies();
    if (started) started = load->prove();
    load->held_ = {};
    if (started) {
      load->choose_promotions();
      started = load->launch(stream);
    }
  } catch (const kernels::cuda::CudaError& error) {
    started = make_error(Errc::io, error.what());
  }
  load->ring_ = {};
  if (started) return std::shared_ptr<Loading>(std::move(load));
  // What was launched before the failure still reads and writes.
  cudaStreamSynchronize(load->stream_.get());
  cudaStreamSynchronize(load->gpu_->streams().unpack.get());
  for (const kernels::cuda::Stream& filling : load->gpu_->streams().to_ring)
    cudaStreamSynchronize(filling.get());
  load->settle_promotions(false);
  load->finished_ = true;
  return started.error();
}

CudaLoad::CudaLoad(std::shared_ptr<CudaGpu> gpu, std::shared_ptr<HeldBlocks> hold, PageTable pages,
                   Gpu::Landed landed)
    : gpu_(std::move(gpu)),
      hold_(std::move(hold)),
      pages_(std::move(pages)),
      ns_(hold_->ns()),
      layout_(ns_.layout),
      cuda_pages_(pages_, ns_),
      stream_(gpu_->streams().load.view()),
      landed_(std::move(landed)) {}

CudaLoad::~CudaLoad() {
  finish();
}

// ---- which blocks

// Of what is in memory, as if all of it held: into the ring, from where nothing goes on before it
// is proven. The link is busy while proofs are compared and tables are written.
Result<void> CudaLoad::begin_copies() {
  held_ = hold_->snapshot();
  const auto count = std::min<std::size_t>(held_.size(), pages_.blocks());
  for (std::size_t i = 0; i < count; ++i) {
    if (held_[i].presence != HeldBlocks::Presence::ready) break;
    slots_.push_back(held_[i].slot);
  }
  return fill_ring();
}

Result<void> CudaLoad::fill_ring() {
  choose_parts();
  to_launch_ = layer_groups();
  runs_table_ = runs_->prepare(to_launch_);
  if (!runs_->uses_ring()) return {};
  ring_ = std::unique_lock(gpu_->ring().mutex);
  return runs_->start();
}

// What was begun is of blocks that do not hold. Waits for it.
void CudaLoad::give_up_copies() {
  for (const kernels::cuda::Stream& filling : gpu_->streams().to_ring)
    cudaStreamSynchronize(filling.get());
  cudaStreamSynchronize(gpu_->streams().unpack.get());
  near_ = {};
  far_ = {};
  unpinned_.clear();
  records_.clear();
  ring_ = {};
}

Result<void> CudaLoad::prove() {
  const std::vector<HeldBlocks::Block>& blocks = held_;
  const auto count = std::min<std::size_t>(blocks.size(), pages_.blocks());
  std::vector<const std::byte*> headers(count, nullptr);
  auto fetched = fetch_headers(blocks, count, headers);
  if (!fetched) return fetched.error();
  auto proven = kvtier::transfer::prove(*hold_, blocks, count, [&](std::uint32_t i) {
    const std::byte* header = headers[i] != nullptr ? headers[i] : blocks[i].slot.bytes().data();
    return std::span(header, layout_.header_bytes);
  });
  faults_ = std::move(proven.faults);
  if (proven.slots.size() == slots_.size()) return {};
  give_up_copies();
  slots_ = std::move(proven.slots);
  return fill_ring();
}

// Headers and proofs of the records that are on the card, brought to the CPU. Nothing on the
// engine's stream has to end first: a leased record does not change.
Result<CudaPools::Memory> CudaLoad::fetch_headers(const std::vector<HeldBlocks::Block>& blocks,
                                                  std::size_t count,
                                                  std::vector<const std::byte*>& headers) {
  std::vector<std::uint32_t> there;
  for (std::uint32_t i = 0; i < count && blocks[i].presence == HeldBlocks::Presence::ready; ++i) {
    if (blocks[i].slot.on_gpu()) there.push_back(i);
  }
  if (there.empty()) return CudaPools::Memory{};
  const std::size_t pointers = 2 * there.size() * sizeof(std::byte*);
  const std::size_t first = round_up(pointers, kRecordAlignment);
  auto memory =
      gpu_->pools().memory(CudaPools::Kind::host, first + there.size() * layout_.header_bytes);
  if (!memory) return memory;
  auto** from = memory->at<const std::byte*>(0);
  auto** to = memory->at<std::byte*>(there.size() * sizeof(std::byte*));
  for (std::size_t n = 0; n < there.size(); ++n) {
    from[n] = blocks[there[n]].slot.gpu_address();
    to[n] = memory->get() + first + n * layout_.header_bytes;
    headers[there[n]] = to[n];
  }
  const StreamView stream = gpu_->streams().check.view();
  try {
    kernels::cuda::copy_pieces(from, to, static_cast<std::uint32_t>(there.size()), 0,
                               round_up(layout_.scales_offset, 16), 0, stream);
  } catch (const kernels::cuda::CudaError& error) {
    return make_error(Errc::io, error.what());
  }
  auto event = gpu_->pools().event();
  if (!event) return event.error();
  cudaError_t code = cudaEventRecord(event->get(), stream.get());
  if (code == cudaSuccess) code = cudaEventSynchronize(event->get());
  if (code != cudaSuccess) {
    cudaStreamSynchronize(stream.get());
    return cuda_error("reading headers from the GPU", code);
  }
  return memory;
}

void CudaLoad::choose_parts() {
  runs_.emplace(*gpu_, ns_, pages_);
  far_.thread_blocks = kFarThreadBlocks;
  far_.on_device = false;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const session::SlotRef& slot = slots_[i];
    std::byte* at = slot.gpu_address();
    const bool stays = pages_.in_place() && slot.on_gpu();
    if (pages_.of_records()) records_.push_back(stays ? at : pages_.record(i));
    if (stays) continue;
    if (at == nullptr) {
      unpinned_.push_back({slot.bytes().data(), i});
    } else {
      (slot.on_gpu() ? near_ : far_).copies.push_back({at, i});
    }
  }
  runs_->take_from(far_.copies, slots_);
}

// Slots of the device tier that are at hand for what is in host memory alone.
void CudaLoad::choose_promotions() {
  if (!pages_.of_records()) return;
  session::SlotPool& pool = hold_->ns().pool(Tier::device);
  const auto& session = hold_->session();
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].on_gpu()) continue;
    if (promotions_.size() == session::kPromotionBlocksMax) break;
    const Key& key = hold_->keys()[i];
    const bool there = session->directory().read(
        [&](const DirectoryView* view) { return view == nullptr || view->on_some_gpu(key); });
    if (there) continue;
    auto slot = pool.take(Clock::now());
    if (!slot) break;
    if (!slot->ref.on_gpu())
      return session->put_back(hold_->ns_ptr(), Tier::device, std::move(*slot));
    promotions_.push_back({i, std::move(*slot)});
  }
  session->refill(hold_->ns_ptr());
}

// ---- the launch

Result<void> CudaLoad::launch(StreamView stream) {
  if (near_.copies.empty() && far_.copies.empty() && runs_->blocks() == 0 && unpinned_.empty())
    return {};
  if (auto good = follow(stream); !good) return good;
  if (auto good = copy_unpinned(); !good) return good;
  if (auto good = send_tables(runs_table_); !good) return good;
  for (const LayerRange& layers : to_launch_) {
    if (auto good = launch_group(layers); !good) return good;
  }
  check(cudaStreamWaitEvent(stream_.get(), groups_.back().landed.get(), 0), "an event of a load");
  launch_promotions();
  auto done = gpu_->pools().event();
  if (!done) return done.error();
  check(cudaEventRecord(done->get(), stream_.get()), "an event of a load");
  done_ = std::move(*done);
  return {};
}

Result<void> CudaLoad::launch_group(const LayerRange& layers) {
  auto landed = gpu_->pools().event();
  if (!landed) return landed.error();
  for (const Part* part : {&near_, &far_}) launch_layers(*part, layers);
  cudaStream_t last = stream_.get();
  if (runs_->blocks() > 0 && runs_->launch(groups_.size())) {
    // What unpacks a group ends after all of it on the load's stream.
    last = gpu_->streams().unpack.get();
    auto copied = gpu_->pools().event();
    if (!copied) return copied.error();
    check(cudaEventRecord(copied->get(), stream_.get()), "an event of a load");
    check(cudaStreamWaitEvent(last, copied->get(), 0), "an event of a load");
  }
  check(cudaEventRecord(landed->get(), last), "an event of a load");
  groups_.push_back({layers, std::move(*landed)});
  return {};
}

// The pages may be in use until here by what the engine has launched; the ring is not.
Result<void> CudaLoad::follow(StreamView stream) {
  auto before = gpu_->pools().event();
  if (!before) return before.error();
  cudaError_t code = cudaEventRecord(before->get(), stream.get());
  for (const cudaStream_t writes : {stream_.get(), gpu_->streams().unpack.get()}) {
    if (code == cudaSuccess) code = cudaStreamWaitEvent(writes, before->get(), 0);
  }
  if (code != cudaSuccess) return cuda_error("an event on the engine's stream", code);
  return {};
}

// Slow and always right, through pinned memory, by a function that the stream calls. The driver's
// own way out of memory that is not pinned would have this thread wait for all that the engine has
// launched, under a lock that pinning and other threads' launches need.
Result<void> CudaLoad::copy_unpinned() {
  if (unpinned_.empty()) return {};
  auto staging = gpu_->pools().memory(CudaPools::Kind::host, kStagedRecords * layout_.record_bytes);
  if (!staging) return staging.error();
  staging_ = std::move(*staging);
  for (std::size_t at = 0; at < unpinned_.size(); at += kStagedRecords) {
    const std::size_t count = std::min(kStagedRecords, unpinned_.size() - at);
    Staged& staged = staged_.emplace_back();
    staged.bytes = layout_.record_bytes;
    Part part;
    part.thread_blocks = kFarThreadBlocks;
    part.on_device = false;
    for (std::size_t n = 0; n < count; ++n) {
      std::byte* const to = staging_.get() + n * layout_.record_bytes;
      staged.copies.push_back({unpinned_[at + n].from, to});
      part.copies.push_back({to, unpinned_[at + n].block});
    }
    check(cudaLaunchHostFunc(
              stream_.get(), [](void* of) { copy_staged(*static_cast<Staged*>(of)); }, &staged),
          "a copy of memory that is not pinned");
    auto table = gpu_->pools().memory(CudaPools::Kind::host, table_bytes(count));
    if (!table) return table.error();
    part.table_read = part.table_written = table->get();
    write_table(part);
    launch_layers(part, {0, layout_.layers});
    staging_tables_.push_back(std::move(*table));  // until the load has ended
  }
  return {};
}

void CudaLoad::copy_staged(const Staged& staged) noexcept {
  for (const Staged::Copy& copy : staged.copies) std::memcpy(copy.to, copy.from, staged.bytes);
}

// From, then where to: the pages of records, or what CudaPages makes of others.
std::size_t CudaLoad::table_bytes(std::size_t copies) const noexcept {
  const std::size_t pointers = copies * sizeof(void*);
  return pointers + (pages_.of_records() ? pointers : cuda_pages_.table_bytes(copies));
}

void CudaLoad::write_table(const Part& part) const {
  auto** at = reinterpret_cast<const void**>(part.table_written);
  for (const RecordCopy& copy : part.copies) *at++ = copy.from;
  if (pages_.of_records()) {
    for (const RecordCopy& copy : part.copies) *at++ = pages_.record(copy.block);
    return;
  }
  std::vector<std::uint32_t> blocks;
  blocks.reserve(part.copies.size());
  for (const RecordCopy& copy : part.copies) blocks.push_back(copy.block);
  cuda_pages_.write_table(blocks, reinterpret_cast<std::byte*>(at));
}

Result<void> CudaLoad::send_tables(std::size_t runs_bytes) {
  const std::size_t near = table_bytes(near_.copies.size());
  const std::size_t far = table_bytes(far_.copies.size());
  const std::size_t promoted = 2 * promotions_.size() * sizeof(void*);
  const std::size_t bytes = near + far + promoted + runs_bytes;
  if (bytes == 0) return {};
  auto host = gpu_->pools().memory(CudaPools::Kind::host, bytes);
  if (!host) return host.error();
  auto device = gpu_->pools().memory(CudaPools::Kind::device, bytes);
  if (!device) return device.error();
  host_table_ = std::move(*host);
  table_ = std::move(*device);
  near_.table_written = host_table_.get();
  near_.table_read = table_.get();
  far_.table_written = host_table_.get() + near;
  far_.table_read = table_.get() + near;
  promotions_table_ = table_.get() + near + far;
  write_table(near_);
  write_table(far_);
  const std::size_t before_runs = near + far + promoted;
  runs_->write_table(host_table_.get() + before_runs, table_.get() + before_runs);
  auto** from = host_table_.at<const std::byte*>(near + far);
  for (std::size_t n = 0; n < promotions_.size(); ++n) {
    from[n] = pages_.record(promotions_[n].block);
    from[promotions_.size() + n] = promotions_[n].slot.ref.gpu_address();
  }
  // On the stream that unpacks, where no copy of the runs is in its way.
  const cudaStream_t stream = gpu_->streams().unpack.get();
  check(cudaMemcpyAsync(table_.get(), host_table_.get(), bytes, cudaMemcpyHostToDevice, stream),
        "a load's table");
  if (near + far + promoted == 0) return {};
  auto sent = gpu_->pools().event();
  if (!sent) return sent.error();
  check(cudaEventRecord(sent->get(), stream), "an event of a load");
  check(cudaStreamWaitEvent(stream_.get(), sent->get(), 0), "an event of a load");
  return {};
}

void CudaLoad::launch_layers(const Part& part, const LayerRange& layers) const {
  if (part.copies.empty()) return;
  const auto count = static_cast<std::uint32_t>(part.copies.size());
  const auto* from = reinterpret_cast<const std::byte* const*>(part.table_read);
  const std::byte* to = part.table_read + count * sizeof(void*);
  if (pages_.of_records()) {
    const ByteRange range = bytes_of(layers, ns_);
    return kernels::cuda::copy_pieces(from, reinterpret_cast<std::byte* const*>(to), count,
                                      range.begin, range.bytes(), part.thread_blocks, stream_);
  }
  cuda_pages_.transfer(layers, count, to, [&](kernels::cuda::TransferArgs& args) {
    args.records = from;
    args.thread_blocks = part.thread_blocks;
    args.on_device = part.on_device;
    kernels::cuda::gather_and_dequantise(args, stream_);
  });
}

// From the pages, which hold the whole records now, so that the link is not used twice.
void CudaLoad::launch_promotions() const {
  if (promotions_.empty()) return;
  const auto count = static_cast<std::uint32_t>(promotions_.size());
  const auto* from = reinterpret_cast<const std::byte* const*>(promotions_table_);
  const auto* to = reinterpret_cast<std::byte* const*>(promotions_table_ + count * sizeof(void*));
  kernels::cuda::copy_pieces(from, to, count, 0, layout_.record_bytes, 0, stream_);
}

std::vector<LayerRange> CudaLoad::layer_groups() const {
  // A piece of a record begins and ends at a multiple of 16 bytes.
  const auto uneven = [](const LayerLayout& layer) { return layer.offset % 16 != 0; };
  if (pages_.of_records() && std::ranges::any_of(ns_.layers, uneven)) return {{0, layout_.layers}};
  const std::size_t blocks =
      std::max<std::size_t>(near_.copies.size() + far_.copies.size() + runs_->blocks(), 1);
  const std::size_t wanted = std::max<std::size_t>((kGroupBytes + blocks - 1) / blocks, kRowBytes);
  std::vector<LayerRange> groups;
  for (std::uint32_t first = 0; first < layout_.layers;) {
    std::uint32_t end = first + 1;
    while (end < layout_.layers && payload_of({first, end}, ns_).bytes() < wanted) ++end;
    groups.push_back({first, end});
    first = end;
  }
  return groups;
}

// ---- after it

void CudaLoad::wait_layer(std::uint32_t layer, StreamView stream) {
  KVTIER_CHECK(layer < layout_.layers);
  const auto group =
      std::ranges::find_if(groups_, [&](const Group& g) { return layer < g.layers.end; });
  if (group == groups_.end()) return;  // nothing is copied
  const OnDevice on(gpu_->device());
  if (cudaStreamWaitEvent(stream.get(), group->landed.get(), 0) == cudaSuccess) return;
  const std::lock_guard lock(mutex_);
  failed_ = true;
}

bool CudaLoad::ended() noexcept {
  const std::lock_guard lock(mutex_);
  if (finished_ || !done_) return true;
  const OnDevice on(gpu_->device());
  return cudaEventQuery(done_.get()) != cudaErrorNotReady;
}

std::uint32_t CudaLoad::finish() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(finished_, true)) return good_;
  const OnDevice on(gpu_->device());
  if (done_ && cudaEventSynchronize(done_.get()) != cudaSuccess) failed_ = true;
  // Only now is it known that the sources did not change under the copies.
  const bool good = hold_->alive() && !failed_;
  good_ = good ? blocks() : 0;
  hold_->note_load(good_, Clock::now() - began_);
  const std::uint32_t promoted = promotions_.empty() ? 0 : promotions_.back().block + 1;
  settle_promotions(good);
  if (!good && blocks() > 0) hold_->note_loss();
  if (good && landed_) landed_(promoted, good_);
  landed_ = nullptr;
  hold_->end_use();
  return good_;
}

void CudaLoad::settle_promotions(bool good) {
  std::vector<session::FilledBlock> filled;
  for (Promotion& promotion : promotions_) {
    if (good) {
      filled.push_back(hold_->filled(promotion.block, std::move(promotion.slot)));
    } else {
      hold_->session()->put_back(hold_->ns_ptr(), Tier::device, std::move(promotion.slot));
    }
  }
  hold_->session()->commit(std::move(filled));
  promotions_.clear();
}

}  // namespace kvtier::transfer
