// What a hostile session says: each of these is one message (flood: many), mostly one that makes
// sense for what the session has.
#pragma once

#include "tests/protocol/hostile/hostile_session.h"

namespace kvtier::protocol::say {

// As a client that may write or read (client_messages.cc).
void hello(HostileSession& session);
void open_namespace(HostileSession& session);
void lease(HostileSession& session);
void look_up(HostileSession& session);
void release(HostileSession& session);
void release_partly(HostileSession& session);
void reserve(HostileSession& session);
void commit(HostileSession& session);
void abandon(HostileSession& session);
void let_go(HostileSession& session);
void hint(HostileSession& session);
void report(HostileSession& session);
void flush(HostileSession& session);
void status(HostileSession& session);

// As an administrator, who it may be (admin_messages.cc).
void list(HostileSession& session);
void drop(HostileSession& session);
void scrub(HostileSession& session);
void set_quota(HostileSession& session);
void inspect(HostileSession& session);
void pin(HostileSession& session);
void unpin(HostileSession& session);
void push(HostileSession& session);
void invalidate(HostileSession& session);
void sessions(HostileSession& session);

// As nobody would (odd_messages.cc).
void wrong_way(HostileSession& session);    // what only a daemon says
void hollow_list(HostileSession& session);  // a list of more elements than its frame has bytes
void flood(HostileSession& session);        // many of one kind, whose answers nobody takes

}  // namespace kvtier::protocol::say
