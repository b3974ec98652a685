#include "choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "clock.h"

namespace memfit::compression {

namespace {

constexpr double kWindow = 64 << 20;         // bytes: what lies further back counts ever less
constexpr size_t kSample = size_t{64} << 10;
constexpr size_t kLeast = size_t{16} << 10;  // what is smaller is not worth the trouble
constexpr double kWorth = 0.9;               // a codec has to save that much
constexpr double kOfCore = 0.5;              // of its time, at the least: a core's, which ops may want
constexpr double kLanes = 2;                 // copies run beside each other: what one takes less, both together take half less
constexpr double kLeastGain = 0.02;          // of the time that copies take
constexpr int kEnoughSeen = 3, kLongestRest = 512;  // iterations
constexpr double kTrials = 0.05;             // of the medium's time trials may take as much,
constexpr double kFirstTrials = 500e6;       // and these nanoseconds
constexpr double kFarOff = 0.1;              // of a storage's bytes
constexpr uint32_t kAgain = 4, kMostBetween = 64;  // departures: a trial is repeated after 4, 16, and every 64
constexpr double kDepartures = 4;  // so many of a storage say how it is read
constexpr size_t kMostKnown = size_t{1} << 16;

}  // namespace

void Pace::add(size_t bytes, double ns) {
  bytes_ += static_cast<double>(bytes);
  ns_ += ns;
  if (bytes_ > kWindow) bytes_ /= 2, ns_ /= 2;
}

void Gain::iteration_ends(double waited_ns, double copied_ns) {
  if (copied_ns <= 0) return;
  const Times now = std::exchange(now_, {});
  late_ = {late_.waited / 2 + waited_ns, late_.copied / 2 + copied_ns, late_.packing / 2 + now.packing, late_.saved / 2 + now.saved};
  if (rest_ > 0) {
    --rest_;
  } else if (++packed_ >= kEnoughSeen && late_.packing > 0) {
    settle(is_enough());
  }
}

void Gain::settle(bool is_enough) {
  if (!is_enough) rest_ = rests_, packed_ = 0;
  rests_ = is_enough ? kFirstRest : std::min(2 * rests_, kLongestRest);
}

void Gain::packed(double ns, double less_ns) {
  now_.packing += ns;
  now_.saved += less_ns;
}

double Gain::value() const {
  const double saved = std::max(late_.saved - late_.packing, 0.0);
  return std::min(kLanes * (late_.waited + saved) / (late_.copied + saved), 1.0);
}

bool Gain::is_enough() const {
  return value() * late_.saved - std::max(value(), kOfCore) * late_.packing >= kLeastGain * late_.copied;
}

void Reads::leaves(size_t bytes) {
  const auto now = static_cast<double>(bytes);
  if (left_ > kDepartures * now) left_ /= 2, asked_ /= 2, unpacked_ /= 2;
  left_ += now;
}

void Reads::add(size_t asked, size_t unpacked) {
  asked_ += static_cast<double>(asked);
  unpacked_ += static_cast<double>(unpacked);
}

Trial try_codecs(const uint8_t* from, size_t size) {
  Scratch& room = scratch();
  Trial trial;
  trial.bytes = std::min(size, kSample);
  const uint8_t* middle = from + (size - trial.bytes) / 2 / kSample * kSample;
  for (size_t codec = 0; codec < kCodecs.size(); ++codec) {
    const auto id = static_cast<CodecId>(codec);
    size_t stored = 0;
    if (id != kRaw) trial.pack_ns[codec] = ns_of([&] { stored = compress(id, middle, trial.bytes, room); });
    trial.shares[codec] = stored != 0 ? static_cast<double>(stored) / static_cast<double>(trial.bytes) : 1;
    if (stored != 0) trial.unpack_ns[codec] = ns_of([&] { decompress(id, stored, room.plain, trial.bytes, room); });
  }
  return trial;
}

bool Choice::wants_trial(size_t offset, size_t size) {
  if (size < kLeast || !gain_.pays()) return false;
  if (known_.size() > kMostKnown) known_.clear();
  Known& known = known_[{offset, size}];
  return ++known.departures >= known.next_trial && tried_ns_ <= kFirstTrials + kTrials * moved_ns_;
}

void Choice::tried(size_t offset, size_t size, const Trial& trial) {
  Known& known = known_[{offset, size}];
  known.shares = trial.shares;
  known.next_trial = known.departures + std::min(std::max(known.departures, uint32_t{1}) * (kAgain - 1), kMostBetween);
  for (size_t codec = 0; codec < kCodecs.size(); ++codec) {
    tried_ns_ += trial.pack_ns[codec] + trial.unpack_ns[codec];
    if (trial.pack_ns[codec] > 0) pack_[codec].add(trial.bytes, trial.pack_ns[codec]);
    if (trial.unpack_ns[codec] > 0) unpack_[codec].add(trial.bytes, trial.unpack_ns[codec]);
  }
}

// To a step, by a byte of the storage, from one departure to the next.
double Choice::cost(CodecId codec, const Known& known) const {
  const double share = known.shares[codec], write = write_.ns_per_byte(), read = read_.ns_per_byte(), value = gain_.value();
  if (codec == kRaw) return kWorth * value * (write + known.reads.asked() * read);
  const double moving = share * (write + known.reads.unpacked() * read);
  const double packing = pack_[codec].ns_per_byte() + known.reads.unpacked() * unpack_[codec].ns_per_byte();
  return value * moving + std::max(value, kOfCore) * packing;
}

void Choice::packed(CodecId codec, size_t bytes, size_t stored, double ns) {
  pack_[codec].add(bytes, ns);
  gain_.packed(ns, write_.ns_per_byte() * (static_cast<double>(bytes) - static_cast<double>(stored)));
}

void Choice::unpacked(CodecId codec, size_t bytes, size_t stored, double ns) {
  unpack_[codec].add(bytes, ns);
  gain_.packed(ns, read_.ns_per_byte() * (static_cast<double>(bytes) - static_cast<double>(stored)));
}

CodecId Choice::of(size_t offset, size_t size) const {
  const auto found = known_.find({offset, size});
  CodecId best = kRaw;
  if (found == known_.end() || !gain_.pays()) return best;
  const Known& known = found->second;
  for (CodecId codec = 1; codec < kCodecs.size(); ++codec)
    if (known.shares[codec] < 1 && cost(codec, known) < cost(best, known)) best = codec;
  return best;
}

void Choice::left(size_t offset, size_t size, CodecId codec, size_t stored) {
  const auto found = known_.find({offset, size});
  if (found == known_.end()) return;
  Known& known = found->second;
  known.reads.leaves(size);
  if (codec == kRaw) return;
  const double share = static_cast<double>(stored) / static_cast<double>(size);
  if (std::abs(share - known.shares[codec]) > kFarOff) known.next_trial = std::min(known.next_trial, known.departures + kAgain);
  known.shares[codec] = share;
}

void Choice::wanted(const Key& storage, size_t asked, size_t unpacked) {
  const auto found = known_.find(storage);
  if (found != known_.end()) found->second.reads.add(asked, unpacked);
}

}  // namespace memfit::compression
