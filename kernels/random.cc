#include "kernels/random.h"

#include "kernels/random_numbers.h"

namespace psd::kernels {
namespace {

template <class Numbers, typename T>
void Fill(const Numbers& numbers, uint64_t first, T* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = numbers(first + i);
}

}  // namespace

std::array<uint32_t, 4> Philox(uint64_t seed, uint64_t counter) {
  const PhiloxBlock block = PhiloxBits(seed, counter);
  return {block.words[0], block.words[1], block.words[2], block.words[3]};
}

void FillUniform(uint64_t seed, uint64_t first, double low, double high, float* out, size_t count) {
  Fill(UniformNumbers<float>{seed, low, high}, first, out, count);
}
void FillUniform(uint64_t seed, uint64_t first, double low, double high, double* out,
                 size_t count) {
  Fill(UniformNumbers<double>{seed, low, high}, first, out, count);
}
void FillNormal(uint64_t seed, uint64_t first, double mean, double deviation, float* out,
                size_t count) {
  Fill(NormalNumbers<float>{seed, mean, deviation}, first, out, count);
}
void FillNormal(uint64_t seed, uint64_t first, double mean, double deviation, double* out,
                size_t count) {
  Fill(NormalNumbers<double>{seed, mean, deviation}, first, out, count);
}

}  // namespace psd::kernels
