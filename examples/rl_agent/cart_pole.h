#pragma once

// Simulates a pole on a cart. The task is to keep the pole upright by pushing the cart left or
// right.

#include <array>
#include <cstdint>
#include <random>

namespace psd::examples {

// Deterministic for a seed. Thread-compatible.
class CartPole {
 public:
  // The cart's place (m) and speed (m/s), the pole's angle (rad) and angular speed (rad/s).
  using State = std::array<float, 4>;

  explicit CartPole(uint64_t seed) : random_(seed) {}

  // Begins an episode. All numbers of the state are near zero.
  State Reset();
  // Pushes for 20 ms, to the right or to the left.
  State Push(bool right);
  // Returns whether the cart has left the track or the pole is about to fall.
  bool Failed() const;

 private:
  State state_ = {};
  std::mt19937_64 random_;
};

}  // namespace psd::examples
