// Frames: how messages travel on the control socket.
//
//   [magic u32][length u32][descriptors u32][zero u32][length bytes: a flat Cap'n Proto message]
//
// little-endian; `length` is a multiple of 8 and bounded. `descriptors` file descriptors accompany
// the frame's first byte (SCM_RIGHTS). A peer that breaks any of this loses its session, nothing
// else.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/fd.h"
#include "core/wire/kvtier.capnp.h"
#include "kvtier/namespace.h"
#include "kvtier/result.h"

namespace kvtier::wire {

inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr std::uint64_t kAnswersRecalls = 1;  // a client gives idle slots back when asked
inline constexpr std::uint64_t kTakesHints = 2;      // a daemon that is older would end the session
// A client knows the tier by its name; a daemon has one, and takes lookUp and push.
inline constexpr std::uint64_t kRemoteTier = 4;
inline constexpr std::uint64_t kFeatures = kAnswersRecalls | kTakesHints | kRemoteTier;
inline constexpr std::uint32_t kFrameMagic = 0x3157564BU;  // "KVW1"
inline constexpr std::uint32_t kFrameBytesMax = 2U << 20;
inline constexpr std::uint32_t kDescriptorsMax = 1;      // a frame
inline constexpr std::uint32_t kLeaseBlocksMax = 16384;  // 16 bytes of key each
inline constexpr std::uint32_t kHintBlocksMax = 4096;    // likewise; all of them in one turn
inline constexpr std::uint32_t kCommitBlocksMax = 64;    // up to kProofBytesMax of proof each
inline constexpr std::uint32_t kReserveMax = 1024;
inline constexpr std::uint32_t kListBlocksMax = 4096;
inline constexpr std::uint32_t kListNamespacesMax = 256;  // up to 4.5 KiB of encoding each
static_assert(kLeaseBlocksMax * 32 < kFrameBytesMax);
static_assert(kCommitBlocksMax * (kProofBytesMax + 256) < kFrameBytesMax);
static_assert(kListBlocksMax * 160 + kListNamespacesMax * 4800 < kFrameBytesMax);

struct FrameHeader {
  std::uint32_t magic;
  std::uint32_t length;
  std::uint32_t descriptors;
  std::uint32_t zero;
};
static_assert(sizeof(FrameHeader) == 16);

// A received frame. Owns its words and descriptors.
class Frame {
 public:
  Frame(std::vector<capnp::word> words, std::vector<UniqueFd> descriptors)
      : words_(std::move(words)), descriptors_(std::move(descriptors)) {}

  // Calls `use(Message::Reader)`. Errors: malformed, when the bytes are not a Message.
  Result<void> read(const std::function<void(Message::Reader)>& use) const;
  std::size_t bytes() const noexcept { return words_.size() * sizeof(capnp::word); }
  // Takes the frame's descriptor; empty if it had none.
  UniqueFd take_descriptor();

 private:
  std::vector<capnp::word> words_;
  std::vector<UniqueFd> descriptors_;
};

// Puts received bytes together to frames. Bounded by one frame.
class FrameReader {
 public:
  // Whether frames may have descriptors. Where none may, one is `malformed`, and those that came
  // are kept for whoever may close them: see take_refused().
  enum class Descriptors { taken, refused };
  explicit FrameReader(Descriptors descriptors = Descriptors::taken) : rule_(descriptors) {}

  // Reads what the socket has without waiting and appends whole frames to `frames`, at most
  // `frames_max`. Errors: unavailable (the peer closed), malformed (saying what), io.
  Result<void> receive(int socket, std::vector<Frame>& frames, std::size_t frames_max = 64);
  // Whether part of a frame has come.
  bool in_progress() const noexcept { return in_body_ || !header_.empty(); }
  // Drops what the socket still has, 4 MiB at most; descriptors that come with it are for
  // take_refused(). Whether the socket is empty then.
  bool discard(int socket);
  // After an error or discard(): the descriptors that came and are in no frame.
  std::vector<UniqueFd> take_refused() { return std::exchange(descriptors_, {}); }

 private:
  Result<void> take_header();
  // recvmsg(), and what descriptors came.
  ssize_t receive_some(int socket, iovec into, int& flags);
  Descriptors rule_;
  std::vector<std::byte> header_;
  std::vector<capnp::word> words_;
  std::size_t filled_ = 0;  // bytes of words_
  bool in_body_ = false;
  FrameHeader current_{};
  std::vector<UniqueFd> descriptors_;
};

// Frames on their way out, in order, bounded in bytes.
class FrameWriter {
 public:
  explicit FrameWriter(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  // Errors: no_space (the peer does not read; end its session), invalid (frame over its bound).
  Result<void> push(capnp::MessageBuilder& message, UniqueFd descriptor = {});
  // Sends what the socket takes without waiting. Errors: unavailable, io.
  Result<void> send(int socket);
  bool empty() const noexcept { return queue_.empty(); }
  std::size_t bytes() const noexcept { return bytes_; }
  // Of all that was ever sent: what tells a peer that reads slowly from one that does not.
  std::uint64_t sent() const noexcept { return sent_; }

 private:
  struct Pending {
    std::vector<std::byte> bytes;
    UniqueFd descriptor;
    std::size_t sent = 0;
  };
  std::size_t bytes_max_;
  std::size_t bytes_ = 0;
  std::uint64_t sent_ = 0;
  std::deque<Pending> queue_;
};

}  // namespace kvtier::wire
