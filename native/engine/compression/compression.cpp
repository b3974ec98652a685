#include "../compression.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "../at_fork.h"
#include "../fingerprint.h"
#include "choice.h"
#include "clock.h"
#include "codecs.h"

namespace memfit {

namespace {

using namespace compression;

struct Packet {
  size_t size = 0, stored = 0;  // bytes, before and after; equal if it lies there as it is
  CodecId codec = kRaw;
  bool is_summed = false;  // a raw one that was written to in part has no checksum
  uint64_t sum = 0;        // of what is stored
  Choice::Key storage{};   // that it was written with
};
using Packets = std::map<size_t, Packet>;  // by offset

// Whose bytes are being read or written: nobody writes where another is.
struct Use {
  size_t begin, end;
  bool writes;
};

// For all media, never destroyed: a forked child finds the mutex free, and nobody to wait for.
struct Sync {
  FreeAtFork<std::mutex> mutex;
  std::condition_variable changed;
};
Sync& sync() {
  static auto* instance = new Sync;
  return *instance;
}
using Guard = std::unique_lock<std::mutex>;

class Compressed final : public Compressing {
 public:
  explicit Compressed(std::unique_ptr<Medium> inner) : inner_(std::move(inner)) {}

  void write(size_t offset, const void* from, size_t size) override;
  void read(size_t offset, void* to, size_t size) override;
  void discard(size_t offset, size_t size) override;
  void claim(size_t offset, size_t size) override;
  std::string name() const override { return inner_->name() + ",compress"; }
  uint64_t bytes_stored() const override { return bytes_stored_; }
  uint64_t bytes_loaded() const override { return bytes_loaded_; }
  size_t stored_at(size_t offset, size_t size) const override;
  void iteration_ends(uint64_t waited_ns, uint64_t copied_ns) override;

 private:
  class Using;

  // A packet that has begun before `offset` and goes on there, or the end.
  Packets::iterator across(size_t offset);
  Packets between(size_t begin, size_t end);
  CodecId codec_for(size_t offset, const uint8_t* from, size_t size);
  void write_whole(size_t offset, const uint8_t* from, size_t size);
  void write_part(size_t begin, const Packet& packet, size_t offset, const uint8_t* from, size_t size);
  Packet write_packed(size_t offset, CodecId codec, const uint8_t* from, size_t size);
  void note_wanted(const Packets& found, size_t begin, size_t end);
  void read_part(size_t begin, const Packet& packet, size_t offset, uint8_t* to, size_t size);
  void unpack(size_t begin, const Packet& packet, uint8_t* to);
  void check(const Packet& packet, const uint8_t* stored) const;
  [[noreturn]] void fail(const char* what) const;
  void put(size_t offset, const uint8_t* from, size_t size);
  void get(size_t offset, uint8_t* to, size_t size);

  const pid_t maker_ = getpid();
  std::unique_ptr<Medium> inner_;
  Packets packets_;
  std::list<Use> uses_;
  Choice choice_;
  std::atomic<uint64_t> bytes_stored_{0}, bytes_loaded_{0};
};

// Of every packet that lies in [begin, end) with a byte, as a whole, from its making to its end.
class Compressed::Using {
 public:
  Using(Compressed& medium, size_t begin, size_t end, bool writes) : medium_(medium) {
    Guard guard(sync().mutex);
    use_ = {begin, end, writes};
    widen();
    if (getpid() != medium_.maker_) return;  // the others are in another process
    while (is_in_the_way()) {
      sync().changed.wait(guard);
      use_ = {begin, end, writes};
      widen();
    }
    at_ = medium_.uses_.insert(medium_.uses_.end(), use_);
    is_listed_ = true;
  }
  ~Using() {
    if (!is_listed_) return;
    {
      Guard guard(sync().mutex);
      medium_.uses_.erase(at_);
    }
    sync().changed.notify_all();
  }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

 private:
  void widen() {
    if (const auto first = medium_.across(use_.begin); first != medium_.packets_.end()) use_.begin = first->first;
    if (const auto last = medium_.across(use_.end); last != medium_.packets_.end()) use_.end = last->first + last->second.size;
  }
  bool is_in_the_way() const {
    return std::any_of(medium_.uses_.begin(), medium_.uses_.end(), [this](const Use& other) {
      return other.begin < use_.end && use_.begin < other.end && (other.writes || use_.writes);
    });
  }

  Compressed& medium_;
  Use use_{};
  std::list<Use>::iterator at_;
  bool is_listed_ = false;
};

Packets::iterator Compressed::across(size_t offset) {
  auto after = packets_.lower_bound(offset);
  if (after == packets_.begin()) return packets_.end();
  const auto before = std::prev(after);
  return before->first + before->second.size > offset ? before : packets_.end();
}

// The packets with a byte in it.
Packets Compressed::between(size_t begin, size_t end) {
  Guard guard(sync().mutex);
  auto first = across(begin);
  if (first == packets_.end()) first = packets_.lower_bound(begin);
  return {first, packets_.lower_bound(end)};
}

void Compressed::write(size_t offset, const void* from, size_t size) {
  if (size == 0) return;
  const Using use(*this, offset, offset + size, /*writes=*/true);
  const auto* bytes = static_cast<const uint8_t*>(from);
  const size_t end = offset + size;
  size_t begin = offset, until = end;  // of what makes packets of its own
  for (const auto& [at, packet] : between(offset, end)) {
    const size_t packet_end = at + packet.size;
    if (at >= offset && packet_end <= end) continue;
    const size_t part = std::max(at, offset), part_end = std::min(packet_end, end);
    write_part(at, packet, part, bytes + (part - offset), part_end - part);
    (at < offset ? begin : until) = at < offset ? part_end : part;
  }
  if (begin < until) write_whole(begin, bytes + (begin - offset), until - begin);
}

CodecId Compressed::codec_for(size_t offset, const uint8_t* from, size_t size) {
  bool is_due;
  {
    Guard guard(sync().mutex);
    is_due = choice_.wants_trial(offset, size);
  }
  const Trial trial = is_due ? try_codecs(from, size) : Trial();
  Guard guard(sync().mutex);
  if (is_due) choice_.tried(offset, size, trial);
  return choice_.of(offset, size);
}

// In place of all packets that lie there now. Those that are raw go out together.
void Compressed::write_whole(size_t offset, const uint8_t* from, size_t size) {
  const CodecId codec = codec_for(offset, from, size);
  Packets made;
  size_t raw = 0, stored = 0;  // bytes: up to here, not written yet; of all
  const auto write_raw = [&](size_t until) { put(offset + until - raw, from + until - raw, raw), raw = 0; };
  for (size_t done = 0; done < size;) {
    const size_t now = std::min(kMostBytes, size - done);
    Packet packet = codec == kRaw ? Packet{now, now} : write_packed(offset + done, codec, from + done, now);
    if (packet.codec == kRaw) {
      packet.is_summed = true, packet.sum = fingerprint(from + done, now);
      raw += now;
    } else if (raw != 0) {
      write_raw(done);
    }
    packet.storage = {offset, size};
    made.emplace(offset + done, packet);
    stored += packet.stored, done += now;
  }
  if (raw != 0) write_raw(size);
  Guard guard(sync().mutex);
  packets_.erase(packets_.lower_bound(offset), packets_.lower_bound(offset + size));
  packets_.merge(made);
  choice_.left(offset, size, codec, stored);
}

// A raw packet, not written, if that is no larger: whole pages are written.
Packet Compressed::write_packed(size_t offset, CodecId codec, const uint8_t* from, size_t size) {
  Scratch& room = scratch();
  size_t packed = 0;
  const double ns = ns_of([&] { packed = compress(codec, from, size, room); });
  const size_t stored = packed == 0 ? size : std::min(round_up(packed, Tier::kAlignment), size);
  {
    Guard guard(sync().mutex);
    choice_.packed(codec, size, stored, ns);
  }
  if (stored == size) return {size, size};
  std::memset(room.packed + packed, 0, stored - packed);
  put(offset, room.packed, stored);
  return {size, packed, codec, true, fingerprint(room.packed, packed)};
}

void Compressed::write_part(size_t begin, const Packet& packet, size_t offset, const uint8_t* from, size_t size) {
  Packet made = packet;
  if (packet.codec == kRaw) {
    put(offset, from, size);
    made.is_summed = false;
  } else {
    std::vector<uint8_t> whole(packet.size);
    unpack(begin, packet, whole.data());
    std::memcpy(whole.data() + (offset - begin), from, size);
    made = write_packed(begin, packet.codec, whole.data(), packet.size);
    if (made.codec == kRaw) put(begin, whole.data(), packet.size);
  }
  made.storage = packet.storage;
  Guard guard(sync().mutex);
  choice_.wanted(packet.storage, size, packet.size);
  packets_[begin] = made;
}

void Compressed::read(size_t offset, void* to, size_t size) {
  if (size == 0) return;
  const Using use(*this, offset, offset + size, /*writes=*/false);
  auto* bytes = static_cast<uint8_t*>(to);
  const size_t end = offset + size;
  const Packets found = between(offset, end);
  size_t raw = offset, done = offset;  // from `raw` to `done` raw packets are yet to be read, together
  const auto read_raw = [&] { if (raw < done) get(raw, bytes + (raw - offset), done - raw); };
  for (const auto& [at, packet] : found) {
    if (at > done) fail("were never written");
    const size_t part_end = std::min(at + packet.size, end);
    if (packet.codec != kRaw) {
      read_raw();
      read_part(at, packet, done, bytes + (done - offset), part_end - done);
      raw = part_end;
    }
    done = part_end;
  }
  if (done < end) fail("were never written");
  read_raw();
  note_wanted(found, offset, end);
  for (const auto& [at, packet] : found)
    if (packet.codec == kRaw && at >= offset && at + packet.size <= end) check(packet, bytes + (at - offset));
}

void Compressed::note_wanted(const Packets& found, size_t begin, size_t end) {
  Guard guard(sync().mutex);
  for (const auto& [at, packet] : found)
    choice_.wanted(packet.storage, std::min(at + packet.size, end) - std::max(at, begin), packet.size);
}

void Compressed::read_part(size_t begin, const Packet& packet, size_t offset, uint8_t* to, size_t size) {
  if (size == packet.size) return unpack(begin, packet, to);
  uint8_t* whole = scratch().plain;
  unpack(begin, packet, whole);
  std::memcpy(to, whole + (offset - begin), size);
}

void Compressed::unpack(size_t begin, const Packet& packet, uint8_t* to) {
  Scratch& room = scratch();
  get(begin, room.packed, packet.stored);
  check(packet, room.packed);
  bool is_whole = false;
  const double ns = ns_of([&] { is_whole = decompress(packet.codec, packet.stored, to, packet.size, room); });
  if (!is_whole) fail("cannot be unpacked: they are not those written");
  Guard guard(sync().mutex);
  choice_.unpacked(packet.codec, packet.size, packet.stored, ns);
}

void Compressed::check(const Packet& packet, const uint8_t* stored) const {
  if (packet.is_summed && fingerprint(stored, packet.stored) != packet.sum) fail("differ from those written (checksum)");
}

void Compressed::fail(const char* what) const {
  throw TierFailure("bytes read back from " + inner_->name() + " " + what + "; choose another disk with --tier disk:PATH");
}

void Compressed::put(size_t offset, const uint8_t* from, size_t size) {
  const double ns = ns_of([&] { inner_->write(offset, from, size); });
  bytes_stored_ += size;
  Guard guard(sync().mutex);
  choice_.wrote(size, ns);
}

void Compressed::get(size_t offset, uint8_t* to, size_t size) {
  const double ns = ns_of([&] { inner_->read(offset, to, size); });
  bytes_loaded_ += size;
  Guard guard(sync().mutex);
  choice_.read(size, ns);
}

void Compressed::discard(size_t offset, size_t size) {
  {
    Guard guard(sync().mutex);
    packets_.erase(packets_.lower_bound(offset), packets_.lower_bound(offset + size));
  }
  inner_->discard(offset, size);
}

// What is new there may be read, and written to in part: it is as raw as the medium has it.
void Compressed::claim(size_t offset, size_t size) {
  inner_->claim(offset, size);
  Guard guard(sync().mutex);
  const auto first = packets_.lower_bound(offset);
  if (first != packets_.end() && first->first < offset + size) return;
  for (size_t done = 0; done < size; done += kMostBytes) {
    const size_t now = std::min(kMostBytes, size - done);
    packets_.emplace(offset + done, Packet{now, now});
  }
}

void Compressed::iteration_ends(uint64_t waited_ns, uint64_t copied_ns) {
  Guard guard(sync().mutex);
  choice_.iteration_ends(static_cast<double>(waited_ns), static_cast<double>(copied_ns));
}

size_t Compressed::stored_at(size_t offset, size_t size) const {
  Guard guard(sync().mutex);
  size_t stored = 0;
  for (auto at = packets_.lower_bound(offset); at != packets_.end() && at->first < offset + size; ++at) stored += at->second.stored;
  return stored;
}

}  // namespace

std::unique_ptr<Compressing> with_compression(std::unique_ptr<Medium> inner) {
  return std::make_unique<Compressed>(std::move(inner));
}

}  // namespace memfit
