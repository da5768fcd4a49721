#pragma once

// Ids that are unique over all workers and over time.

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace psd {

// Identifies one run of a worker: 64 random bits, drawn at every Worker::Start, never zero.
using Incarnation = uint64_t;

// Draws a non-zero incarnation from the system's entropy.
Incarnation NewIncarnation();

// An id drawn by one incarnation of a worker. Both fields are zero if there is no id.
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

// Returns sixteen hexadecimal digits.
std::string IncarnationToString(Incarnation incarnation);

// Draws the ids of one incarnation, with counters from 1 upwards. Thread-safe.
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
