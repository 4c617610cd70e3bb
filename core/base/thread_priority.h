// What a thread asks of the scheduler. Wishes: refused ones are passed over.
#pragma once

namespace kvtier {

// For threads that somebody waits for and that work in short bursts: they ask for turns of 0.1 ms,
// and so come to their next turn before threads that compute for long (Linux 6.12 or later), and
// for a nice value of -5 (CAP_SYS_NICE).
void ask_for_short_turns() noexcept;

// For threads whose work may wait: a nice value of 5.
void yield_to_others() noexcept;

}  // namespace kvtier
