#include "engine_adapter/warm/remote_push.h"

#include <thread>

#include "core/wire/sync_request.h"

namespace kvtier::warm {

Result<Pushed> push_to_remote(const std::string& socket, std::chrono::milliseconds within) {
  constexpr std::chrono::minutes kAnswerMax{10};
  constexpr std::chrono::milliseconds kBetween{500};
  constexpr int kTimesMax = 20;
  const auto began = Clock::now();
  auto session = session::SyncSession::connect(socket, "kvtier-warm", began + kAnswerMax);
  if (!session) return session.error();
  Pushed last;
  for (int times = 0; times < kTimesMax; ++times) {
    // The daemon counts in whole seconds.
    const auto since =
        within + std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(since).count() + 1;
    Pushed now;
    const auto asked = session->request(
        [&](wire::Message::Builder m) {
          m.initPush().setUsedWithinS(static_cast<std::uint32_t>(seconds));
        },
        [&](wire::Message::Reader m) {
          if (m.isPushed()) now = {m.getPushed().getBlocks(), m.getPushed().getLeft()};
        },
        Clock::now() + kAnswerMax);
    if (!asked) return asked.error();
    const bool settled = times > 0 && now.blocks == last.blocks && now.left == last.left;
    last = now;
    if (settled) break;
    std::this_thread::sleep_for(kBetween);
  }
  return last;
}

}  // namespace kvtier::warm
