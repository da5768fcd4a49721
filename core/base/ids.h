#pragma once

// Ids that are unique over all workers and over time.

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace psd {

// One life of a worker: 64 random bits, new at every Worker::Start, never zero for a real worker.
using Incarnation = uint64_t;

// Draws an incarnation from the system's entropy. Never zero.
Incarnation NewIncarnation();

// An id made by one incarnation of a worker. Zero/zero means "none".
struct GlobalId {
  Incarnation incarnation = 0;
  uint64_t counter = 0;

  bool IsNone() const { return incarnation == 0 && counter == 0; }
  // "1f3c9a0b44d2e677/12": sixteen hexadecimal digits of the incarnation, then the counter.
  std::string ToString() const;

  friend bool operator==(const GlobalId& a, const GlobalId& b) {
    return a.incarnation == b.incarnation && a.counter == b.counter;
  }
  friend bool operator!=(const GlobalId& a, const GlobalId& b) { return !(a == b); }
  friend bool operator<(const GlobalId& a, const GlobalId& b) {
    return a.incarnation != b.incarnation ? a.incarnation < b.incarnation : a.counter < b.counter;
  }
  template <typename H>
  friend H AbslHashValue(H h, const GlobalId& id) {
    return H::combine(std::move(h), id.incarnation, id.counter);
  }
};

std::string IncarnationToString(Incarnation incarnation);

// Hands out the ids of one incarnation, from counter 1 upwards. Thread-safe.
class IdSource {
 public:
  explicit IdSource(Incarnation incarnation) : incarnation_(incarnation) {}
  IdSource(const IdSource&) = delete;
  IdSource& operator=(const IdSource&) = delete;

  GlobalId Next() { return {incarnation_, next_.fetch_add(1, std::memory_order_relaxed)}; }
  Incarnation incarnation() const { return incarnation_; }

 private:
  const Incarnation incarnation_;
  std::atomic<uint64_t> next_{1};
};

}  // namespace psd
