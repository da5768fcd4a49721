#include "core/program/blake2b.h"

#include <algorithm>
#include <cstring>

namespace psd::program {
namespace {

constexpr size_t kBlockBytes = 128;
constexpr size_t kDigestBytes = 16;

constexpr uint64_t kIv[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                             0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                             0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

constexpr uint8_t kSigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

uint64_t RotateRight(uint64_t x, int n) { return x >> n | x << (64 - n); }

uint64_t LoadLittle(const uint8_t* bytes) {
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | bytes[i];
  return word;
}

void Mix(uint64_t v[16], int a, int b, int c, int d, uint64_t x, uint64_t y) {
  v[a] += v[b] + x;
  v[d] = RotateRight(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = RotateRight(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = RotateRight(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = RotateRight(v[b] ^ v[c], 63);
}

void Compress(uint64_t h[8], const uint8_t block[kBlockBytes], uint64_t total, bool last) {
  uint64_t v[16];
  uint64_t m[16];
  for (int i = 0; i < 8; ++i) v[i] = h[i];
  for (int i = 0; i < 8; ++i) v[i + 8] = kIv[i];
  v[12] ^= total;
  if (last) v[14] = ~v[14];
  for (int i = 0; i < 16; ++i) m[i] = LoadLittle(block + 8 * i);
  for (int round = 0; round < 12; ++round) {
    const uint8_t* s = kSigma[round % 10];
    for (int i = 0; i < 4; ++i) Mix(v, i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
    for (int i = 0; i < 4; ++i) {
      Mix(v, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, m[s[2 * i + 8]],
          m[s[2 * i + 9]]);
    }
  }
  for (int i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

std::array<uint8_t, 16> Blake2b128(absl::string_view bytes) {
  uint64_t h[8];
  std::copy(std::begin(kIv), std::end(kIv), h);
  h[0] ^= 0x01010000 ^ kDigestBytes;
  uint64_t total = 0;
  while (bytes.size() > kBlockBytes) {
    total += kBlockBytes;
    Compress(h, reinterpret_cast<const uint8_t*>(bytes.data()), total, false);
    bytes.remove_prefix(kBlockBytes);
  }
  uint8_t block[kBlockBytes] = {};
  if (!bytes.empty()) std::memcpy(block, bytes.data(), bytes.size());
  Compress(h, block, total + bytes.size(), true);
  std::array<uint8_t, 16> digest;
  for (size_t i = 0; i < kDigestBytes; ++i) digest[i] = static_cast<uint8_t>(h[i / 8] >> 8 * (i % 8));
  return digest;
}

}  // namespace psd::program
