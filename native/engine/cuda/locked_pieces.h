// Page-locked host memory at consecutive offsets, in pieces that a thread locks before they are used: to lock a piece takes
// many times as long as to copy it, and the thread that runs ops would wait for that.
// Its members are the pieces, and how far the thread that makes them has come and is to come.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace memfit::cuda {

class LockedPieces {
 public:
  // The driver knows each piece by itself: a copy may not go from one into the next.
  static constexpr size_t kPiece = size_t{256} << 20;

  // Addresses for `capacity` bytes, near the GPU if the system says which memory is. Raises TierFailure without them.
  LockedPieces(int device, size_t capacity);
  // Nothing may be copying any more.
  ~LockedPieces();
  LockedPieces(const LockedPieces&) = delete;
  LockedPieces& operator=(const LockedPieces&) = delete;

  // Returns when there is memory behind all offsets below `end`, and has the next pieces made meanwhile. What the system
  // refuses to lock is ordinary memory, and said once.
  void reach(size_t end);
  // Where the byte at an offset that was reached lies; those up to the end of its piece follow.
  char* at(size_t offset);
  // Where the GPU's ops reach bytes at offsets that were reached: all of them, one after another, in what the driver takes for
  // one piece. nullptr where they cannot. (Pieces are made one for it: that waits for the GPU.)
  char* in_one_stretch(size_t offset, size_t bytes);

 private:
  enum class Kind { kRegistered, kAllocated, kOrdinary };
  struct Piece {
    char* memory;
    Kind kind;
    size_t first;  // the driver takes it, those since this one, and perhaps some after it, for one
  };

  class Populating;

  void run();
  void add(Piece piece);
  // By one thread at a time, with the mutex or without. Unless it `is_last`, the one after it is made next.
  Piece make(size_t number, bool is_last);
  void lock_memory(Piece& piece, size_t number, bool is_last);
  // With the mutex.
  bool make_one(size_t first, size_t last);
  size_t end_of_stretch(size_t number) const;
  size_t bytes_of(size_t first, size_t end) const;
  void warn_if_ordinary(size_t needed);

  const int device_;
  const size_t capacity_;
  char* addresses_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Piece> pieces_;
  size_t wanted_ = 0;  // pieces
  size_t locked_ = 0;  // likewise
  bool closing_ = false, warned_ = false;
  // The system's words; once it has refused it is not asked again. Written before the first ordinary piece is there.
  std::string refusal_;
  bool allocates_ = false;  // the driver has refused to lock what it has not allocated itself
  std::unique_ptr<Populating> ahead_;  // of the piece that is made next
  std::thread thread_;
};

}  // namespace memfit::cuda
