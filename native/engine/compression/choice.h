// Choice: which codec pays for a storage, by what it saves of it and by what codecs and the medium cost at present.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "codecs.h"

namespace memfit::compression {

// Nanoseconds a byte, of late.
class Pace {
 public:
  Pace() = default;
  Pace(double bytes, double ns) : bytes_(bytes), ns_(ns) {}

  void add(size_t bytes, double ns);
  double ns_per_byte() const { return bytes_ > 0 ? ns_ / bytes_ : 0; }

 private:
  double bytes_ = 0, ns_ = 0;
};

// What is left of a storage's bytes under each codec, and how long each took.
struct Trial {
  std::array<double, kCodecs.size()> shares{}, pack_ns{}, unpack_ns{};
  size_t bytes = 0;
};
// Of some of the `size` bytes, from their middle.
Trial try_codecs(const uint8_t* from, size_t size);

// How often a storage's bytes are read after they have left, of late: by page faults more than once, and a few at a time.
// Once and whole, until it is known.
class Reads {
 public:
  void leaves(size_t bytes);
  void add(size_t asked, size_t unpacked);
  // Bytes by those that left: wanted, and unpacked for them if all is packed.
  double asked() const { return asked_ / left_; }
  double unpacked() const { return unpacked_ / left_; }

 private:
  double left_ = 1, asked_ = 1, unpacked_ = 1;
};

// What codecs bring a step, of late: its ops wait less for copies, and have less of the cores.
class Gain {
 public:
  // In an iteration ops have waited so long for copies, which have taken so long.
  void iteration_ends(double waited_ns, double copied_ns);
  // A codec has taken `ns`, and the medium so much less for it.
  void packed(double ns, double less_ns);
  // What a nanosecond less of copies is worth, from 0 to 1: all of it where ops wait for copies, nothing where these are
  // over in time anyway. (What is saved already ops would have waited for, as far as is known.)
  double value() const;
  // Whether packing is worth the trouble. Once it was not, it is tried again some iterations later.
  bool pays() const { return rest_ == 0; }

 private:
  struct Times {
    double waited = 0, copied = 0, packing = 0, saved = 0;  // ns
  };
  bool is_enough() const;
  void settle(bool is_enough);

  Times late_{1, 1, 0, 0}, now_;  // the latest iterations, and the one under way
  int packed_ = 0, rest_ = 0, rests_ = kFirstRest;  // iterations: in a row, to come without, and of the next rest
  static constexpr int kFirstRest = 32;
};

// Nothing in here waits or takes long: the caller's mutex guards it.
class Choice {
 public:
  // A storage is known by where its copy lies and how large it is.
  using Key = std::pair<size_t, size_t>;

  // Whether it is to be tried (again) before it goes there.
  bool wants_trial(size_t offset, size_t size);
  void tried(size_t offset, size_t size, const Trial& trial);
  // The codec that costs least at present, there and back.
  CodecId of(size_t offset, size_t size) const;
  // That left `stored` bytes of the storage; a trial that was far off is repeated soon.
  void left(size_t offset, size_t size, CodecId codec, size_t stored);
  // `asked` bytes of it were read or written anew, and `unpacked` ones have to be for that where they are packed.
  void wanted(const Key& storage, size_t asked, size_t unpacked);

  // `bytes` have been packed, or unpacked; `stored` of them are left.
  void packed(CodecId codec, size_t bytes, size_t stored, double ns);
  void unpacked(CodecId codec, size_t bytes, size_t stored, double ns);
  void wrote(size_t bytes, double ns) { write_.add(bytes, ns), moved_ns_ += ns; }
  void read(size_t bytes, double ns) { read_.add(bytes, ns), moved_ns_ += ns; }
  void iteration_ends(double waited_ns, double copied_ns) { gain_.iteration_ends(waited_ns, copied_ns); }

 private:
  struct Known {
    Known() { shares.fill(1); }
    std::array<double, kCodecs.size()> shares;  // until it is tried no codec takes anything off
    uint32_t departures = 0, next_trial = 1;
    Reads reads;
  };

  double cost(CodecId codec, const Known& known) const;

  std::map<Key, Known> known_;
  std::array<Pace, kCodecs.size()> pack_, unpack_;
  // Half a gigabyte a second, until it is measured.
  Pace write_{1 << 20, 2 << 20}, read_{1 << 20, 2 << 20};
  Gain gain_;
  double moved_ns_ = 0, tried_ns_ = 0;  // what the medium and the trials have taken so far
};

}  // namespace memfit::compression
