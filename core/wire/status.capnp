# What the daemon says of itself when it is asked for its status (kvtier.capnp).
@0xb1a7d04e93c25f68;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("kvtier::wire");

struct Status {
  version @0 :Text;
  bootId @1 :Data;
  uptimeMs @2 :UInt64;
  tiers @3 :List(Tier);
  sessions @4 :UInt32;
  leases @5 :UInt64;
  reservedSlots @6 :UInt64;
  quarantinedSlots @7 :UInt64;
  lookedUp @8 :UInt64;
  misses @9 :UInt64;
  faults @10 :UInt64;
  droppedWriteBacks @11 :UInt64;
  blocks @12 :UInt64;
  blocksMax @13 :UInt64;
  namespaces @14 :UInt32;
  doubleReleases @15 :UInt64;
  frameErrors @16 :UInt64;
  disks @17 :List(Disk);
  orphans @18 :UInt64;           # blocks on disk whose namespace nobody has opened since the index was lost
  gpus @19 :List(Gpu);           # the parts of the device tier
  tenants @20 :List(Tenant);     # those that the asking peer may use
  peers @21 :List(Peer);         # the sessions; of its own user only, where the asking peer is no admin
  turnedAway @22 :UInt64;        # connections, at a bound on sessions
  denied @23 :UInt64;            # requests that the peer has no right to
  refusedReports @24 :UInt64;    # of bad keys: not leased, or the record holds
  pid @25 :UInt32;               # of kvtierd
  hints @26 :List(HintCount);    # those that are not 0
  prefetching @27 :UInt64;       # blocks that hints have asked for and that are on their way, or wait to be
  events @28 :Events;            # null where none are published
  remote @29 :Remote;            # null where there is no remote tier

  struct Remote {
    url @0 :Text;
    state @1 :Text;              # online, read-only (nothing is written), offline
    online @2 :Bool;             # it can be read
    why @3 :Text;                # what is wrong; empty where nothing is
    blocks @4 :UInt64;           # known to be there
    onlyThere @5 :UInt64;        # of those, this host has nowhere else
    hits @6 :UInt64;
    hitBytes @7 :UInt64;         # records leased
    lookups @8 :UInt64;          # questions sent
    lookupsLate @9 :UInt64;      # that their leases did not wait for
    found @10 :UInt64;           # blocks
    blocksRead @11 :UInt64; bytesRead @12 :UInt64; blocksWritten @13 :UInt64; bytesWritten @14 :UInt64;
    gone @15 :UInt64;            # blocks that were known, and were there no more
    corrupt @16 :UInt64;         # records that did not hold
    late @17 :UInt64;            # operations past their deadline
    droppedWrites @18 :UInt64;   # blocks that were to go there and did not
    queuedBlocks @19 :UInt64;
    connections @20 :UInt32;
  }

  struct Events {                # `lost`: changes that the queue had no room for, and which a walk made up for
    listening @0 :Bool; batches @1 :UInt64; stored @2 :UInt64; removed @3 :UInt64;    # blocks in them, once a tier
    lost @4 :UInt64; walks @5 :UInt64; replayed @6 :UInt64; snapshots @7 :UInt64;     # batches of answers
    queuedBytes @8 :UInt64; queueBytesMax @9 :UInt64; keptBytes @10 :UInt64; subscriptions @11 :UInt32;
  }
  struct HintCount {
    kind @0 :UInt8;
    outcome @1 :Text;            # as in the metric kvtier_hints_total
    blocks @2 :UInt64;
  }
  struct Tier {
    tier @0 :UInt8;
    online @1 :Bool;
    usedBytes @2 :UInt64;        # records
    takenBytes @3 :UInt64;       # of the system: extents or segments
    capBytes @4 :UInt64;
    blocks @5 :UInt64;
    hits @6 :UInt64;
    evictions @7 :UInt64;
    insertions @8 :UInt64;
    failures @9 :UInt64;         # reads that did not hold, writes that failed
    droppedWrites @10 :UInt64;
    note @11 :Text;              # why it is offline
    hitBytes @12 :UInt64;        # records leased
    insertedBytes @13 :UInt64;
    pinnedBlocks @14 :UInt64;
    pinnedBytes @15 :UInt64;
    pinnedBytesMax @16 :UInt64;
    reservedBytes @17 :UInt64;   # slots that clients may fill, quarantined ones too; no client fills a disk's
    hintedBlocks @18 :UInt64;    # kept, or of a priority, by hints
    hintedBytes @19 :UInt64;
    hintedBytesMax @20 :UInt64;  # for all users together
    demotedBlocks @21 :UInt64;
  }
  struct Gpu {
    uuid @0 :Data;
    number @1 :UInt32;           # as the driver counts for the daemon
    name @2 :Text;               # the model; "memory" where it is emulated
    usedBytes @3 :UInt64;        # slots with a record
    takenBytes @4 :UInt64;       # of the system: extents
    capBytes @5 :UInt64;
    blocks @6 :UInt64;
    reservedBytes @7 :UInt64;    # slots that clients may fill, quarantined ones too
  }
  struct Disk {
    directory @0 :Text;
    online @1 :Bool;             # it can be read
    why @2 :Text;                # it is not online
    usedBytes @3 :UInt64;        # slots in use
    takenBytes @4 :UInt64;       # of the system: segments
    capBytes @5 :UInt64;         # of segments
    fileBytes @6 :UInt64;        # allocated under the directory, index included
    blocks @7 :UInt64;
    bytesWritten @8 :UInt64;     # records, since the daemon started
    bytesWrittenPerDay @9 :UInt64;  # at the rate of the last 24 hours, or of less where it has run for less
    failures @10 :UInt64;        # reads and writes that the device failed
    corrupt @11 :UInt64;         # records that did not hold
    bytesRead @12 :UInt64;       # records, since the daemon started
    capacityBytes @13 :UInt64;   # as configured: what is not capBytes is kept for the index, or is no whole segment
    givenUp @14 :UInt64;         # records that a failed sync left in doubt, and that are there no more
    state @15 :Text;             # online, read-only (nothing is written), late (not there since the start), offline
    badBytes @16 :UInt64;        # of places that are not used again: what was written there could not be read
  }
}

struct Tenant {
  name @0 :Text;
  isolated @1 :Bool;
  usedBytes @2 :List(UInt64);    # per tier: of slots, sealed, reserved and quarantined ones
  quotaBytes @3 :List(UInt64);   # per tier, over all GPUs or directories; the highest number: none
  guaranteedBytes @4 :List(UInt64);
  namespaces @5 :UInt32;
}

struct Peer {
  session @0 :UInt64;
  name @1 :Text;
  pid @2 :UInt32;
  uid @3 :UInt32;
  gid @4 :UInt32;
  readOnly @5 :Bool;
  admin @6 :Bool;
  leases @7 :UInt32;
  leasedBlocks @8 :UInt64;
  reservedSlots @9 :UInt64;
  unsentBytes @10 :UInt64;
}
