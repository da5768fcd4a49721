#pragma once

// Memory floors: the time that one core needs to stream arrays of floats and nothing else. Each is
// a plain loop, compiled for every instruction set that Highway knows and chosen at run time, as
// kernels are.

#include <cstddef>

namespace psd::bench {

// Memory for floors. It is mapped in huge pages if the system allows them, and its pages are
// touched beforehand, so that no floor pays for page faults.
class MappedFloats {
 public:
  explicit MappedFloats(size_t size);
  ~MappedFloats();
  MappedFloats(const MappedFloats&) = delete;
  MappedFloats& operator=(const MappedFloats&) = delete;

  float* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const size_t size_;
  float* const data_;
};

// All sizes are multiples of 16. Arrays do not overlap and start at multiples of 64 bytes.

// Reads an array once.
float StreamRead(const float* a, size_t size);
// Reads two arrays and writes one of them, like SGD.
void StreamR2W1(float* a, const float* b, size_t size);
// Reads four arrays and writes three of them, like Adam.
void StreamR4W3(float* a, const float* b, float* c, float* d, size_t size);
// An optimizer's step from an old version `a` to a new one, which is written past the caches as the
// kernels do; `b` is the gradient, `c` and `d` are state.
void UpdateR2W1(const float* a, const float* b, float* next, size_t size);            // SGD
void UpdateR3W2(const float* a, const float* b, float* c, float* next, size_t size);  // Adagrad …
void UpdateR4W3(const float* a, const float* b, float* c, float* d, float* next,
                size_t size);  // Adam …
// The trainer's own math of a train step, fused: returns the sum of p * c, and sets g = 0.5 * c.
float StepMath(const float* p, const float* c, float* g, size_t size);
// The same by one operator at a time, as a graph computes it: the product is written to `product`
// and read again by the sum, and the gradient is a pass of its own.
float StepMathUnfused(const float* p, const float* c, float* product, float* g, size_t size);

// Keeps a result from being optimised away.
void Consume(float value);

}  // namespace psd::bench
