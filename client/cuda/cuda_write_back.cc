#include "client/cuda/cuda_write_back.h"

#include <algorithm>
#include <tuple>

#include "client/cuda/cuda_pages.h"
#include "core/base/check.h"
#include "core/base/units.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/kernels.h"

namespace kvtier::transfer {

using kernels::cuda::check;

namespace {

// So that a batch's start and end are small beside its copy, whatever the size of its records.
constexpr std::uint64_t kBatchBytes = 32_MiB;
constexpr std::size_t kBatchBlocksMax = 128;
// The first batch and the last ones: enough to copy while the next one is made.
constexpr std::uint64_t kEdgeBytes = 8_MiB;
constexpr std::size_t kBatchesUnderWay = 3;
// So that both streams to the host have some of a batch.
constexpr std::uint64_t kRunBytesMax = 16_MiB;

}  // namespace

std::byte* CudaWriteBackJob::host_bytes(const Filling& filling) noexcept {
  return filling.slots.host->ref.bytes().data();
}

CudaWriteBackJob::CudaWriteBackJob(std::shared_ptr<CudaGpu> gpu, CudaPools::Event after,
                                   std::shared_ptr<session::Session> session,
                                   std::shared_ptr<session::NamespaceEntry> ns,
                                   std::shared_ptr<WriteBackBudget> budget, Work work)
    : WriteBackJob(std::move(session), std::move(ns), std::move(budget), std::move(work)),
      gpu_(std::move(gpu)),
      after_(std::move(after)),
      batch_bytes_(kEdgeBytes) {}

CudaWriteBackJob::~CudaWriteBackJob() {
  KVTIER_CHECK(under_way_.empty());
}

CopyJob::Step CudaWriteBackJob::step() noexcept {
  const OnDevice on(gpu_->device());
  const bool begun = begin_batch();
  const std::uint32_t settled = std::exchange(unsettled_, 0);
  // Another batch, before the first is waited for.
  if (begun && next_ < blocks() && under_way_.size() < kBatchesUnderWay)
    return settled == 0 ? Step::more : settle(settled);
  if (!under_way_.empty()) return settle(settled + finish_oldest());
  return settled == 0 ? Step::stuck : settle(settled);
}

void CudaWriteBackJob::begin() noexcept {
  const OnDevice on(gpu_->device());
  begin_batch();
}

void CudaWriteBackJob::abandon() noexcept {
  const OnDevice on(gpu_->device());
  settle(std::exchange(unsettled_, 0));
  while (!under_way_.empty()) settle(finish_oldest());
  drop_rest();
}

bool CudaWriteBackJob::begin_batch() noexcept {
  if (next_ == blocks() || under_way_.size() == kBatchesUnderWay) return false;
  Batch batch = gather();
  if (batch.blocks.empty()) return false;
  batch_bytes_ = std::min(2 * batch_bytes_, kBatchBytes);
  // Slots that were freed from a prefix's tail on come in descending order.
  std::ranges::sort(batch.blocks, {}, host_bytes);
  launch(batch);
  under_way_.push_back(std::move(batch));
  return true;
}

// The last ones become smaller.
std::size_t CudaWriteBackJob::batch_blocks() const noexcept {
  const std::uint64_t left = (blocks() - next_) * layout().record_bytes;
  const std::uint64_t bytes = std::min(batch_bytes_, std::max(left / 2, kEdgeBytes));
  return std::clamp<std::size_t>(bytes / layout().record_bytes, 1, kBatchBlocksMax);
}

CudaWriteBackJob::Batch CudaWriteBackJob::gather() {
  Batch batch;
  const std::size_t most = batch_blocks();
  while (next_ < blocks() && batch.blocks.size() < most) {
    Slots slots;
    const Taken taken = take_slots(next_, slots);
    if (taken == Taken::later) break;
    if (taken == Taken::slots) {
      batch.blocks.push_back({next_, std::move(slots)});
    } else {
      ++unsettled_;
    }
    ++next_;
  }
  return batch;
}

void CudaWriteBackJob::launch(Batch& batch) noexcept {
  try {
    batch.failed = !try_launch(batch).has_value();
  } catch (const kernels::cuda::CudaError&) {
    batch.failed = true;
  }
  if (!batch.failed) return;
  // Whatever of it was launched.
  for (const kernels::cuda::Stream& stream : gpu_->streams().to_host)
    cudaStreamSynchronize(stream.get());
  cudaStreamSynchronize(gpu_->streams().on_device.get());
}

Result<void> CudaWriteBackJob::try_launch(Batch& batch) {
  const auto& streams = gpu_->streams();
  const cudaStream_t on_device = streams.on_device.get();
  check(cudaStreamWaitEvent(on_device, after_.get(), 0), "an event of a write-back");
  for (Filling& filling : batch.blocks) {
    filling.from = pages().of_records() ? pages().record(filling.block) : nullptr;
  }
  if (!pages().of_records()) {
    if (auto good = pack(batch); !good) return good;
  }
  // After the engine's work, or after the packing of this batch.
  auto ready = gpu_->pools().event();
  if (!ready) return ready.error();
  check(cudaEventRecord(ready->get(), on_device), "an event of a write-back");
  for (const kernels::cuda::Stream& stream : streams.to_host)
    check(cudaStreamWaitEvent(stream.get(), ready->get(), 0), "an event of a write-back");
  // The driver waits for what is before a copy to memory that is not pinned, and pinning and other
  // threads' launches then wait for the driver: here only this thread does.
  const auto unpinned = [](const Filling& filling) {
    return filling.slots.host->ref.gpu_address() == nullptr;
  };
  if (std::ranges::any_of(batch.blocks, unpinned)) {
    check(cudaEventSynchronize(ready->get()), "an event of a write-back");
  }
  copy_to_host(batch);
  if (auto good = copy_to_device(batch); !good) return good;
  for (const cudaStream_t stream :
       {streams.to_host[0].get(), streams.to_host[1].get(), on_device}) {
    auto end = gpu_->pools().event();
    if (!end) return end.error();
    check(cudaEventRecord(end->get(), stream), "an event of a write-back");
    batch.ends.push_back(std::move(*end));
  }
  return {};
}

// An engine's pages to records in the card's memory.
Result<void> CudaWriteBackJob::pack(Batch& batch) {
  const std::size_t count = batch.blocks.size();
  const CudaPages cuda_pages(pages(), ns());
  const std::size_t pointers = count * sizeof(void*);
  const std::size_t table_bytes = pointers + cuda_pages.table_bytes(count);
  // The batch's from the start: what is launched here may fail half way.
  for (const auto& [memory, kind, bytes] :
       {std::tuple{&batch.packed, CudaPools::Kind::device, count * layout().record_bytes},
        std::tuple{&batch.host_table, CudaPools::Kind::host, table_bytes},
        std::tuple{&batch.table, CudaPools::Kind::device, table_bytes}}) {
    auto taken = gpu_->pools().memory(kind, bytes);
    if (!taken) return taken.error();
    *memory = std::move(*taken);
  }
  auto** records = batch.host_table.at<const std::byte*>(0);
  std::vector<std::uint32_t> blocks;
  for (std::size_t n = 0; n < count; ++n) {
    records[n] = batch.blocks[n].from = batch.packed.get() + n * layout().record_bytes;
    blocks.push_back(batch.blocks[n].block);
  }
  cuda_pages.write_table(blocks, batch.host_table.get() + pointers);
  const StreamView stream = gpu_->streams().on_device.view();
  check(cudaMemcpyAsync(batch.table.get(), batch.host_table.get(), table_bytes,
                        cudaMemcpyHostToDevice, stream.get()),
        "a write-back's table");
  cuda_pages.transfer({0, layout().layers}, count, batch.table.get() + pointers,
                      [&](kernels::cuda::TransferArgs& args) {
                        args.records = batch.table.at<const std::byte*>(0);
                        kernels::cuda::quantise_and_pack(args, stream);
                      });
  return {};
}

// Records that lie side by side here and there go together.
void CudaWriteBackJob::copy_to_host(const Batch& batch) const {
  const auto& streams = gpu_->streams().to_host;
  const std::size_t bytes = layout().record_bytes;
  const auto to = [&](std::size_t n) { return host_bytes(batch.blocks[n]); };
  const auto slot = [&](std::size_t n) -> const session::SlotRef& {
    return batch.blocks[n].slots.host->ref;
  };
  std::size_t turn = 0;
  for (std::size_t n = 0; n < batch.blocks.size();) {
    std::size_t run = 1;
    while (n + run < batch.blocks.size() && run * bytes < kRunBytesMax &&
           slot(n + run).copied_with(slot(n)) && to(n + run) == to(n) + run * bytes &&
           batch.blocks[n + run].from == batch.blocks[n].from + run * bytes) {
      ++run;
    }
    check(cudaMemcpyAsync(to(n), batch.blocks[n].from, run * bytes, cudaMemcpyDefault,
                          streams[turn++ % streams.size()].get()),
          "records on their way to the host");
    n += run;
  }
}

Result<void> CudaWriteBackJob::copy_to_device(Batch& batch) {
  const std::size_t header = layout().scales_offset;
  auto headers =
      gpu_->pools().memory(CudaPools::Kind::host, batch.blocks.size() * layout().header_bytes);
  if (!headers) return headers.error();
  const cudaStream_t stream = gpu_->streams().on_device.get();
  for (std::size_t n = 0; n < batch.blocks.size(); ++n) {
    const Filling& filling = batch.blocks[n];
    if (!filling.slots.device) continue;
    std::byte* to = filling.slots.device->ref.bytes().data();
    std::byte* own = headers->get() + n * layout().header_bytes;
    write_header_of(filling.block, {own, layout().header_bytes});
    check(cudaMemcpyAsync(to, own, header, cudaMemcpyDefault, stream), "a header to the device");
    check(cudaMemcpyAsync(to + header, filling.from + header, layout().record_bytes - header,
                          cudaMemcpyDefault, stream),
          "a record on the device");
  }
  batch.headers = std::move(*headers);
  return {};
}

// Returns its number of blocks, each of which is committed or dropped.
std::uint32_t CudaWriteBackJob::finish_oldest() noexcept {
  Batch batch = std::move(under_way_.front());
  under_way_.pop_front();
  for (const CudaPools::Event& end : batch.ends)
    batch.failed = cudaEventSynchronize(end.get()) != cudaSuccess || batch.failed;
  std::ranges::sort(batch.blocks, {}, &Filling::block);  // parents first
  for (Filling& filling : batch.blocks) {
    if (batch.failed) {
      drop(std::move(filling.slots));
      continue;
    }
    write_header_of(filling.block, filling.slots.host->ref.bytes().first(layout().record_bytes));
    commit(filling.block, std::move(filling.slots));
  }
  return static_cast<std::uint32_t>(batch.blocks.size());
}

}  // namespace kvtier::transfer
