# The control plane of kvtier: messages between a client and kvtierd. One Message a frame
# (docs/format.md). Requests carry an id from 1 up; the reply repeats it. Events carry id 0.
@0xd3b6f0a2c9e84517;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("kvtier::wire");
using Status = import "status.capnp".Status;

struct Message {
  id @0 :UInt64;
  union {
    error @1 :Failure;           # reply to any request that failed

    # Client to daemon.
    hello @2 :Hello;             # must come first; answered by welcome
    openNamespace @3 :Data;      # canonical encoding; answered by opened
    lease @4 :LeaseRequest;      # answered by leased, then events ready
    release @5 :List(UInt64);    # lease ids; no reply, unknown ids are counted
    reserve @6 :ReserveRequest;  # answered by reserved
    commit @7 :Commit;           # answered by committed
    abandon @8 :List(UInt64);    # slots given back unfilled; no reply
    report @9 :Report;           # renews every lease of the session; no reply
    flush @10 :Void;             # answered by done once all commits before it are durable
    status @11 :Void;            # answered by statusReply
    list @12 :ListRequest;       # answered by listReply
    drop @13 :DropRequest;       # answered by dropped

    # Daemon to client.
    welcome @14 :Welcome;        # with the directory's descriptor
    opened @15 :UInt32;          # the namespace's handle in this session
    leased @16 :Leased;
    reserved @17 :Reserved;
    committed @18 :UInt32;       # blocks taken; the others were there already or not valid
    done @19 :Void;
    statusReply @20 :Status;
    listReply @21 :ListReply;
    dropped @22 :Removed;

    # Events, id 0.
    extent @23 :Extent;          # with the extent's descriptor; before anything that names it
    extentGone @24 :UInt32;
    ready @25 :Ready;

    # Later additions, client to daemon and back.
    scrub @26 :ScrubRequest;     # answered by scrubReply
    scrubReply @27 :ScrubReport;
    setQuota @28 :QuotaRequest;  # answered by done
    releasePartly @29 :List(Release);  # as release, where not every block was of use; no reply
    letGo @30 :Void;             # the client writes no more to slots that its earlier sessions had; no reply
    inspect @31 :InspectRequest; # answered by inspected
    inspected @32 :Inspected;
    pin @33 :PinRequest;         # answered by pinned
    pinned @34 :Pinned;
    unpin @35 :UnpinRequest;     # answered by unpinned
    unpinned @36 :UInt64;        # blocks
    invalidate @37 :NamespaceFilter;  # answered by invalidated
    invalidated @38 :Invalidated;
    sessions @39 :Void;          # answered by sessionsReply
    sessionsReply @40 :List(SessionInfo);

    # Event, id 0: this handle's namespace was invalidated: nothing is found or committed until it is opened again.
    namespaceClosed @41 :UInt32;

    # Event, id 0, for hellos with feature bit 0: slots are needed. Those not being filled go at once; answered by returned.
    recall @42 :Recall;
    returned @43 :UInt64;        # client to daemon, after what it abandons: the recall's number; no reply

    # Client to daemon, no reply: what it expects to need, or no more. To a daemon with feature bit 1 in its welcome.
    hint @44 :Hint;

    # To a daemon with feature bit 2 in its welcome, which has a remote tier.
    lookUp @47 :LeaseRequest;    # asks it for what is not known of these keys; answered by lookedUp, in some ms at most
    lookedUp @48 :UInt32;        # leading blocks that are known now, in whatever tier
    push @49 :PushRequest;       # answered by pushed, once all are there or given up
    pushed @50 :Pushed;
  }

  leftOut @45 :UInt64;           # with a flush's done: blocks that were to go to disk since the start, and have not
  leftOutInMemory @46 :UInt64;   # of them: in host memory, and offered again when they are used
}

# Namespaces by what is given; nothing given: all. A model is "name@revision" (the last @ counts).
struct NamespaceFilter {
  id @0 :Data;                   # 16 bytes
  model @1 :Text;                # the name without its revision
  revisionRule @2 :UInt8;        # with a model: 0 any revision, 1 this one, 2 all but this one
  revision @3 :Text;
}

# Blocks: all of those namespaces, or the one of this key, or with it those around it.
struct Selection {
  namespaces @0 :NamespaceFilter;
  key @1 :Data;                  # 16 bytes; empty: all
  around @2 :UInt8;              # 0 that block alone, 1 and its ancestors, 2 and what descends from it
}

struct Failure {
  code @0 :UInt16;               # kvtier::Errc
  message @1 :Text;
}

struct Hello {
  version @0 :UInt32;
  features @1 :UInt64;
  name @2 :Text;
  gpu @3 :Data;                  # the UUID (16 bytes) of the client's GPU; empty: it has none. A GPU that
                                 # the daemon emulates has its number in the last byte, zeros before
  readOnly @4 :Bool;             # asks for no more: memory that cannot be written, and no writing requests
  client @5 :UInt64;             # random, the same in a client's sessions, of which a new ends the earlier; 0: none
  lineage @6 :Data;              # as an earlier welcome had it; empty: the client has no extents
  extents @7 :List(UInt32);      # of that lineage, which the client still has mapped
  extentsReadOnly @8 :Bool;      # that they are mapped for reading alone: of use to a session of that right only
}

struct Welcome {
  version @0 :UInt32;
  features @1 :UInt64;
  bootId @2 :Data;               # 16 bytes, new at each start of the daemon
  leaseMs @3 :UInt32;            # a lease ends this long after the session's last message
  directoryBytes @4 :UInt64;
  frameBytesMax @5 :UInt32;
  device @6 :UInt8;              # the number of the client's GPU in the directory's words; 31: the device
                                 # tier is not on it. Slots of that tier are only ever named on this GPU
  readOnly @7 :Bool;             # asked for, or all that this peer may have
  lineage @8 :Data;              # 16 bytes; within a lineage an extent's id never means another extent
  extents @9 :List(UInt32);      # those of hello's that are there still: they are not told of again
}

# A slot is named by extent << 32 | slot. 0 is no slot (extents count from 1).
struct LeaseRequest {
  ns @0 :UInt32;
  keys @1 :Data;                 # 16 bytes a block, from the prefix's first
  lookedUp @2 :UInt32;           # blocks of the prompt that could have been cached; at least the keys
  ahead @3 :Bool;                # of a request that is still to come: counted among no lookups, hits or misses
  first @4 :UInt32;              # the number of the first key in its prefix, plus one; 0: not told
}

struct Release {
  lease @0 :UInt64;
  usable @1 :UInt32;             # leading blocks that came in time and held: the rest are misses
}

# Never a promise: what is not there, or may not be had, is passed over and counted.
struct Hint {
  ns @0 :UInt32;
  keys @1 :Data;                 # 16 bytes a block, that follow one another in a prefix
  kind @2 :UInt8;                # 0 prefetch, 1 keep, 2 demote, 3 ended
  tier @3 :UInt8;                # prefetch: into it, 1; keep: in it, 0, 1; demote, ended: from it and faster ones, 0, 1
  priority @4 :UInt8;            # keep: 0 none, to 3
  seconds @5 :UInt32;            # keep: for so long; 0: no longer than by its priority
  first @6 :UInt32;              # as in LeaseRequest
}

struct Leased {
  lease @0 :UInt64;
  slots @1 :List(UInt64);        # as many as granted; 0: still on its way from disk or the remote tier
  tiers @2 :Data;                # one byte a block: the kvtier::Tier it was in; remote only for hellos with feature bit 2
}

struct Ready {
  lease @0 :UInt64;
  blocks @1 :List(UInt32);
  slots @2 :List(UInt64);        # 0: the block failed
}

struct ReserveRequest {
  ns @0 :UInt32;
  tier @1 :UInt8;
  count @2 :UInt32;
}

struct Reserved {
  slots @0 :List(UInt64);        # at most what was asked, perhaps none
}

# Idle slots to give back: all in these extents, and of these namespaces all but so many.
struct Recall {
  number @0 :UInt64;
  extents @1 :List(UInt32);
  keeps @2 :List(Keep);

  struct Keep {
    ns @0 :UInt32;
    tier @1 :UInt8;
    slots @2 :UInt32;
  }
}

struct Commit {
  ns @0 :UInt32;
  blocks @1 :List(Block);

  struct Block {
    key @0 :Data;                # 16 bytes
    parent @1 :Data;             # 16 bytes
    blockIndex @2 :UInt32;
    proof @3 :Data;              # tokens (4 bytes each, little-endian) or digests, then extra bytes
    slots @4 :List(UInt64);      # filled slots, each reserved by this session, one a tier
    promptBlocks @5 :UInt32;     # of the sequence that it was stored for, as far as it had come; 0: not told
    answerTokens @6 :UInt32;     # to be generated behind that sequence, as far as the engine can say; 0: not told
  }
}

struct Report {
  # Everything since the last report.
  missed @0 :List(Missed);       # lookups for which no lease was asked
  headerFaults @1 :UInt64;       # leased blocks whose header did not hold
  proofFaults @2 :UInt64;        # and those whose proof did not
  dropped @3 :List(UInt64);      # write-backs dropped by the client, by kvtier::DropReason
  badKeys @4 :List(Data);        # keys behind the faults: the daemon forgets them
  loads @5 :List(Timing);        # by the slowest tier that one of the load's blocks came from
  writeBacks @6 :Timing;
  checksumFaults @7 :UInt64;     # leased blocks whose payload did not have its checksum

  struct Missed {
    ns @0 :UInt32;
    blocks @1 :UInt64;
  }
  struct Timing {
    buckets @0 :List(UInt64);    # by microseconds (core/base/log2_buckets.h)
    sumUs @1 :UInt64;
    bytes @2 :UInt64;            # of records
  }
}

struct Extent {
  id @0 :UInt32;
  tier @1 :UInt8;
  bytes @2 :UInt64;
  slotBytes @3 :UInt64;
  kind @4 :UInt8;                # of the descriptor: 0 a memfd, 1 exported CUDA memory
}

# A piece of the list. Namespaces and blocks each go on from what the last reply said.
struct ListRequest {
  namespaces @0 :NamespaceFilter;
  blocksMax @1 :UInt32;          # 0: no blocks
  tiers @2 :UInt8;               # bits: only blocks in one of these; 0: all
  fromBlock @3 :UInt32;
  namespacesMax @4 :UInt32;      # 0: no namespaces
  fromNamespace @5 :UInt32;
}

struct ListReply {
  namespaces @0 :List(Namespace);
  blocks @1 :List(Block);        # perhaps none although more follow
  nextNamespace @2 :UInt32;      # 0: that was the last
  nextBlock @3 :UInt32;          # 0: that was the last

  struct Namespace {
    id @0 :Data;
    encoded @1 :Data;            # its salt left out: that is a secret
    blocks @2 :UInt64;
    bytes @3 :List(UInt64);      # per tier
    hits @4 :List(UInt64);       # blocks leased, per tier
    closed @5 :Bool;             # invalidated, and not opened anew since
    sessions @6 :UInt32;         # times it is open
    tenant @7 :Text;             # the name of the tenant that it belongs to
    salted @8 :Bool;             # it has a salt
  }
  struct Block {
    key @0 :Data;
    ns @1 :Data;
    blockIndex @2 :UInt32;
    tiers @3 :UInt8;             # bits
    leases @4 :UInt32;           # and reads and writes of the daemon's own
    recordBytes @5 :UInt64;
    lastAccess @6 :UInt64;
    pinned @7 :UInt8;            # bits
    kept @8 :UInt8;              # bits: until a time, by a hint
    demoted @9 :UInt8;           # bits: the first to go there
    priority @10 :UInt8;         # the highest that a hint has given it in a tier
  }
}

struct DropRequest {
  selection @0 :Selection;
  tiers @1 :UInt8;               # bits; 0: all
  force @2 :Bool;                # what is held or pinned too, as soon as it can go; of all tiers
}

struct Removed {
  blocks @0 :UInt64;             # that left at least one tier
  inUse @1 :UInt64;              # that stayed in one: leased, or on their way to or from disk
  pinned @2 :UInt64;             # that stayed in one because of a pin
}

struct Invalidated {
  namespaces @0 :List(Data);     # ids
  removed @1 :Removed;
  sessions @2 :UInt32;           # that were told
  disksOffline @3 :List(Text);   # where entries are removed when they are back; not if kvtierd ends before
}

struct PinRequest {
  selection @0 :Selection;
  tiers @1 :UInt8;               # bits; 0: all
  seconds @2 :UInt32;
}

# Counted once a tier.
struct Pinned {
  blocks @0 :UInt64;             # pinned, or pinned again
  bytes @1 :UInt64;
  noRoom @2 :UInt64;             # past the share of the tier that pins may hold
}

# Blocks in host memory, to the remote tier, whatever its admission.
struct PushRequest {
  selection @0 :Selection;
  usedWithinS @1 :UInt32;        # only those that came or were used within this time; 0: all
}

struct Pushed {
  blocks @0 :UInt64;             # that are there now
  left @1 :UInt64;               # that are not: not in host memory, the store is offline or refuses them, or kept here
}

struct UnpinRequest {
  selection @0 :Selection;
  tiers @1 :UInt8;               # bits; 0: all
}

struct InspectRequest {
  key @0 :Data;
  verify @1 :Bool;               # reads the record where it lies and checks it
}

struct Inspected {
  block @0 :ListReply.Block;
  parent @1 :Data;               # 16 bytes, zero for a prefix's first block
  parentCached @2 :Bool;
  namespace @3 :ListReply.Namespace;
  placements @4 :List(Placement);
  loading @5 :Bool;              # on its way from disk
  writeQueued @6 :Bool;          # on its way to disk
  doomed @7 :Bool;               # found no more; goes with its last lease
  clock @8 :UInt64;              # what lastAccess counts to now: leases and commits of the daemon

  struct Placement {
    tier @0 :UInt8;
    container @1 :UInt32;        # extent, or segment file
    slot @2 :UInt32;
    device @3 :UInt32;           # GPU or disk, by its number in the daemon
    where @4 :Text;              # a disk's directory, a GPU's name
    holds @5 :UInt32;            # without a pin
    pinnedMs @6 :UInt64;         # left; 0: not pinned
    online @7 :Bool;
    checked @8 :Checked;         # whether its bytes were looked at, and what was found
    note @9 :Text;               # why not, or what does not hold
    keptMs @10 :UInt64;          # left, by a hint; 0: not kept
    priority @11 :UInt8;         # by a hint
    demoted @12 :Bool;
  }
  enum Checked {
    no @0;
    holds @1;
    corrupt @2;
    unsealed @3;                 # never written to disk: it has a header and a proof, and no checksum
  }
}

struct SessionInfo {
  id @0 :UInt64;
  name @1 :Text;
  pid @2 :UInt32;
  ageMs @3 :UInt64;
  silentMs @4 :UInt64;           # since its last message
  leases @5 :UInt64;
  blocksLeased @6 :UInt64;
  slotsReserved @7 :UInt64;
  namespaces @8 :UInt32;
}

# Limits of a tenant, until the daemon ends. What a tenant has above a new quota is evicted in steps.
struct QuotaRequest {
  tenant @0 :Text;
  tier @1 :UInt8;
  quotaBytes @2 :UInt64;         # of the device tier on each GPU; the highest number: none
  guaranteedBytes @3 :UInt64;
}

struct ScrubRequest {
  start @0 :Bool;                # a pass over everything, if none such is under way; false: only report
}

struct ScrubReport {
  running @0 :Bool;
  passes @1 :UInt64;             # ended, since the daemon started
  current @2 :Pass;              # where running
  last @3 :Pass;                 # where passes is not 0

  struct Pass {
    records @0 :UInt64;          # checked
    bytes @1 :UInt64;
    corrupt @2 :UInt64;          # each forgotten, its slot tested
    skipped @3 :UInt64;          # out of reach, or changed meanwhile
    durationMs @4 :UInt64;       # so far, of one that runs
    endedAgoMs @5 :UInt64;
  }
}
