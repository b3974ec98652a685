// A tier's compression and its codecs as C functions, for tests, on a medium in memory whose bytes and failures they choose.
// Time is counted: whoever looks at the clock takes kLook, and the medium what a test has said. So a codec takes as long
// for a packet as any other, on any processor, and a test that asks what pays has the same answer each time.
#include <atomic>
#include <chrono>

namespace memfit {

struct CountedClock {
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<CountedClock, duration>;
  static constexpr int64_t kLook = 20'000;
  static time_point now() { return time_point(duration(ns += kLook)); }
  static inline std::atomic<int64_t> ns{0};
};

}  // namespace memfit
#define MEMFIT_CODEC_CLOCK memfit::CountedClock

#include "engine/compression/compression_unity.cc"

#include <thread>
#include <vector>

namespace memfit {

struct Plain final : Medium {
  std::vector<unsigned char> bytes;
  size_t writes = 0, reads = 0;
  bool fails = false, is_full = false;
  double ns_per_byte = 0;
  std::mutex mutex;

  void take_time(size_t size) const { CountedClock::ns += static_cast<int64_t>(ns_per_byte * static_cast<double>(size)); }

  void write(size_t offset, const void* from, size_t size) override {
    std::lock_guard<std::mutex> lock(mutex);
    ++writes;
    if (fails) throw TierFailure("the write failed");
    std::memcpy(bytes.data() + offset, from, size);
    take_time(size);
  }
  void read(size_t offset, void* to, size_t size) override {
    std::lock_guard<std::mutex> lock(mutex);
    ++reads;
    if (fails) throw TierFailure("the read failed");
    std::memcpy(to, bytes.data() + offset, size);
    take_time(size);
  }
  void discard(size_t, size_t) override {}
  void claim(size_t, size_t) override {
    if (is_full) throw TierFailure("there is no room");
  }
  std::string name() const override { return "plain"; }
};

struct Probe {
  Plain* inner;
  std::unique_ptr<Compressing> medium;
};

thread_local std::string message;

template <typename Action>
int told(const Action& action) {
  try {
    action();
    return 1;
  } catch (const TierFailure& failure) {
    message = failure.what();
    return 0;
  }
}

}  // namespace memfit

using namespace memfit;

extern "C" {

// As Medium's; 0 for one that fails, and then `failure` says why.
Probe* make(size_t capacity, double ns_per_byte) {
  auto inner = std::make_unique<Plain>();
  inner->bytes.resize(capacity);
  inner->ns_per_byte = ns_per_byte;
  Plain* plain = inner.get();
  return new Probe{plain, with_compression(std::move(inner))};
}
void destroy(Probe* probe) { delete probe; }
int put(Probe* probe, size_t offset, const void* from, size_t size) {
  return told([&] { probe->medium->write(offset, from, size); });
}
int get(Probe* probe, size_t offset, void* to, size_t size) {
  return told([&] { probe->medium->read(offset, to, size); });
}
void discard(Probe* probe, size_t offset, size_t size) { probe->medium->discard(offset, size); }
int claim(Probe* probe, size_t offset, size_t size) {
  return told([&] { probe->medium->claim(offset, size); });
}
const char* failure() { return message.c_str(); }

void iteration_ends(Probe* probe, uint64_t waited_ns, uint64_t copied_ns) { probe->medium->iteration_ends(waited_ns, copied_ns); }

size_t stored_at(Probe* probe, size_t offset, size_t size) { return probe->medium->stored_at(offset, size); }
size_t bytes_stored(Probe* probe) { return probe->medium->bytes_stored(); }
size_t bytes_loaded(Probe* probe) { return probe->medium->bytes_loaded(); }
size_t writes(Probe* probe) { return probe->inner->writes; }
size_t reads(Probe* probe) { return probe->inner->reads; }
size_t time_ns(Probe*) { return static_cast<size_t>(CountedClock::ns); }
void fail(Probe* probe, int fails) { probe->inner->fails = fails != 0; }
void fill_up(Probe* probe, int whether) { probe->inner->is_full = whether != 0; }
unsigned char* stored(Probe* probe) { return probe->inner->bytes.data(); }

size_t codecs() { return compression::kCodecs.size(); }
// The size of `from` packed into `packed`, which has room for twice that; 0: no smaller.
size_t pack(int codec, const uint8_t* from, size_t size, uint8_t* packed) {
  compression::Scratch& room = compression::scratch();
  const size_t stored = compression::compress(static_cast<compression::CodecId>(codec), from, size, room);
  std::memcpy(packed, room.packed, stored);
  return stored;
}
int unpack(int codec, const uint8_t* packed, size_t stored, uint8_t* to, size_t size) {
  compression::Scratch& room = compression::scratch();
  std::memcpy(room.packed, packed, stored);
  return compression::decompress(static_cast<compression::CodecId>(codec), stored, to, size, room);
}

// What each target's instructions make; `target` counts those that this processor has. 0 beyond the last.
int shuffle(int target, int bits, const uint8_t* from, size_t size, size_t width, uint8_t* to, uint8_t* back) {
  std::vector<const compression::Shuffles*> sets = {&compression::plain};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) sets.push_back(&compression::avx2);
  if (__builtin_cpu_supports("avx512bw")) sets.push_back(&compression::avx512);
#endif
  if (static_cast<size_t>(target) >= sets.size()) return 0;
  const compression::Shuffles& set = *sets[static_cast<size_t>(target)];
  (bits != 0 ? set.bits : set.bytes)(from, size, width, to);
  (bits != 0 ? set.bits_back : set.bytes_back)(to, size, width, back);
  return 1;
}
size_t squeeze(int target, const uint8_t* from, size_t size, uint8_t* to, uint8_t* back) {
  std::vector<const compression::ZeroValues*> sets = {&compression::kPlain};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) sets.push_back(&compression::kAvx2);
  if (__builtin_cpu_supports("avx512f")) sets.push_back(&compression::kAvx512);
#endif
  if (static_cast<size_t>(target) >= sets.size()) return 0;
  const compression::ZeroValues& set = *sets[static_cast<size_t>(target)];
  const size_t stored = compression::squeeze_zeros(set, from, size, to);
  return compression::expand_zeros(set, to, stored, back, size) ? stored : 0;
}

// Several threads, each with its own stretches of `bytes`, and pages among those of the others: 0 if all read what they wrote.
int disturb(Probe* probe, size_t threads, size_t stretch, size_t rounds) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> all;
  std::vector<unsigned char> whole(threads * stretch, 0);
  probe->medium->write(0, whole.data(), whole.size());
  for (size_t t = 0; t < threads; ++t)
    all.emplace_back([=, &wrong] {
      std::vector<unsigned char> mine(4096), found(4096);
      for (size_t round = 0; round < rounds; ++round) {
        // The pages of all threads are interleaved, so that they share packets.
        const size_t page = (round * threads + t) % (threads * stretch / 4096);
        for (size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<unsigned char>((i % 64) == 0 ? t + round : t);
        probe->medium->write(page * 4096, mine.data(), mine.size());
        probe->medium->read(page * 4096, found.data(), found.size());
        wrong += mine != found;
      }
    });
  for (std::thread& thread : all) thread.join();
  return wrong;
}

}  // extern "C"
