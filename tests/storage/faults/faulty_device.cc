#include "tests/storage/faults/faulty_device.h"

#include <utility>

#include "storage/device/wrapped_device.h"

namespace kvtier::storage {

void Faults::on_read(std::uint64_t nth, Fault fault) {
  const std::lock_guard lock(mutex_);
  reads_faults_[nth] = fault;
}

void Faults::on_write(std::uint64_t nth, Fault fault) {
  const std::lock_guard lock(mutex_);
  writes_faults_[nth] = fault;
}

void Faults::break_down(int error) {
  const std::lock_guard lock(mutex_);
  broken_reads_ = broken_writes_ = broken_syncs_ = error;
}

void Faults::break_writes(int error) {
  const std::lock_guard lock(mutex_);
  broken_writes_ = error;
}

void Faults::break_syncs(int error) {
  const std::lock_guard lock(mutex_);
  broken_syncs_ = error;
}

void Faults::mend() {
  break_down(0);
}

void Faults::hold() {
  const std::lock_guard lock(mutex_);
  holding_ = true;
}

void Faults::release() {
  const std::lock_guard lock(mutex_);
  holding_ = false;
  if (device_ != nullptr) device_->wake();
}

void Faults::wait_for_started(std::uint64_t transfers) {
  std::unique_lock lock(mutex_);
  started_.wait(lock, [&] { return reads_ + writes_ >= transfers; });
}

Faults::Started Faults::started() {
  const std::lock_guard lock(mutex_);
  return {reads_, writes_};
}

std::optional<Faults::Fault> Faults::next(bool is_read) {
  const std::lock_guard lock(mutex_);
  auto& faults = is_read ? reads_faults_ : writes_faults_;
  const auto fault = faults.extract(is_read ? ++reads_ : ++writes_);
  started_.notify_all();
  const int broken = is_read ? broken_reads_ : broken_writes_;
  if (broken != 0) return Fault{.error = broken};
  return fault ? std::optional(fault.mapped()) : std::nullopt;
}

int Faults::broken_sync() {
  const std::lock_guard lock(mutex_);
  return broken_syncs_;
}

void Faults::wait_for_pinned(std::uint64_t buffers) {
  std::unique_lock lock(mutex_);
  started_.wait(lock, [&] { return pinned_ >= buffers; });
}

void Faults::note_pinned() {
  const std::lock_guard lock(mutex_);
  ++pinned_;
  started_.notify_all();
}

bool Faults::holding() {
  const std::lock_guard lock(mutex_);
  return holding_;
}

class FaultyDevice final : public WrappedDevice {
 public:
  FaultyDevice(std::unique_ptr<BlockDevice> inner, Faults& faults)
      : WrappedDevice(std::move(inner)), faults_(faults) {
    const std::lock_guard lock(faults_.mutex_);
    faults_.device_ = this;
  }
  ~FaultyDevice() override {
    const std::lock_guard lock(faults_.mutex_);
    faults_.device_ = nullptr;
  }

  const char* kind() const noexcept override { return "faulty"; }

 protected:
  void pin_buffer_impl(BufferId buffer, std::span<std::byte>) override {
    inner().pin_buffer(buffer);
    faults_.note_pinned();
  }
  void read_impl(const Transfer& transfer) override { start(transfer, true); }
  void write_impl(const Transfer& transfer) override { start(transfer, false); }
  void sync_impl(FileId file, std::uint64_t tag) override {
    if (const int error = faults_.broken_sync()) {
      kept_.push_back({tag, errno_error(Errc::io, "injected fault", error), error});
    } else {
      inner().sync(file, tag);
    }
  }

  void reap_impl(std::vector<Completion>& out, Wait wait, Duration at_most) override {
    const bool have_some = !kept_.empty() && !faults_.holding();
    inner().reap(kept_, have_some ? Wait::no : wait, at_most);
    if (faults_.holding()) return;
    for (Completion& completion : kept_) {
      const auto flip = flips_.extract(completion.tag);
      if (flip) *flip.mapped().first ^= flip.mapped().second;
      out.push_back(std::move(completion));
    }
    kept_.clear();
  }

 private:
  void start(Transfer transfer, bool is_read) {
    const Faults::Fault fault = faults_.next(is_read).value_or(Faults::Fault{});
    if (fault.error != 0) {
      const Errc kind = fault.error == ENOSPC ? Errc::no_space : Errc::io;
      kept_.push_back(
          {transfer.tag, errno_error(kind, "injected fault", fault.error), fault.error});
      return;
    }
    if (fault.only_bytes) transfer.bytes = *fault.only_bytes;
    if (transfer.bytes == 0) {
      kept_.push_back({transfer.tag, {}, 0});
      return;
    }
    transfer.offset += static_cast<std::uint64_t>(fault.moved_by);
    if (fault.flipped_bit) {
      const std::byte bit{static_cast<unsigned char>(1U << (*fault.flipped_bit % 8))};
      flips_[transfer.tag] = {transfer.memory + *fault.flipped_bit / 8, bit};
    }
    is_read ? inner().read(transfer) : inner().write(transfer);
  }

  Faults& faults_;
  std::vector<Completion> kept_;  // completed, not yet handed out
  std::map<std::uint64_t, std::pair<std::byte*, std::byte>> flips_;  // by tag
};

std::unique_ptr<BlockDevice> make_faulty_device(std::unique_ptr<BlockDevice> inner,
                                                Faults& faults) {
  return std::make_unique<FaultyDevice>(std::move(inner), faults);
}

}  // namespace kvtier::storage
