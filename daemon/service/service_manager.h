// What kvtierd tells the service manager that started it (systemd, or whatever else reads the
// socket in NOTIFY_SOCKET): the sd_notify protocol, through libsystemd. Without a manager every
// call does nothing. Callable from any thread.
#pragma once

#include <chrono>
#include <string>

namespace kvtier::daemon {

class ServiceManager {
 public:
  // A start or a stop that says nothing for so long is taken for stuck, however much time the
  // unit gives it altogether.
  static constexpr std::chrono::seconds kPatience{120};

  // What is being done, for `systemctl status`.
  void status(const std::string& text) const;
  // The same while starting or stopping, with the promise of more within `patience`.
  void progress(const std::string& text, std::chrono::seconds patience = kPatience) const;

  // It serves. Also the end of reloading().
  void ready(const std::string& text) const;
  // The configuration is being read again; ready() must follow.
  void reloading() const;
  // No client is served any more.
  void stopping(const std::string& text, std::chrono::seconds patience = kPatience) const;

  // The control loop turns.
  void alive() const;
  // How often alive() is wanted at the least; zero where nobody looks.
  static std::chrono::microseconds watchdog_time();
};

}  // namespace kvtier::daemon
