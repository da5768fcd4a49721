#include "examples/rl_agent/cart_pole.h"

#include <cmath>

namespace psd::examples {
namespace {

constexpr double kGravity = 9.8;       // m/s^2
constexpr double kCartMass = 1.0;      // kg
constexpr double kPoleMass = 0.1;      // kg
constexpr double kHalfLength = 0.5;    // m, from the hinge to the pole's centre of mass
constexpr double kForce = 10.0;        // N
constexpr double kSeconds = 0.02;      // of one push
constexpr double kTrackHalf = 2.4;     // m
constexpr double kMaxAngle = 0.20944;  // rad: 12 degrees
constexpr double kNearZero = 0.05;

}  // namespace

CartPole::State CartPole::Reset() {
  for (float& value : state_) {
    const double uniform = static_cast<double>(random_() >> 11) * 0x1p-52 - 1;
    value = static_cast<float>(kNearZero * uniform);
  }
  return state_;
}

// Applies the equations of motion of a cart with a uniform pole hinged on it, without friction.
// With the pole's angle a, the force F, the masses M (both) and m (pole), and l = kHalfLength:
//   a'' = (g sin a - cos a (F + m l a'^2 sin a) / M) / (l (4/3 - m cos^2 a / M))
//   x'' = (F + m l (a'^2 sin a - a'' cos a)) / M
CartPole::State CartPole::Push(bool right) {
  const double force = right ? kForce : -kForce;
  const double mass = kCartMass + kPoleMass;
  const double angle = state_[2], spin = state_[3];
  const double sine = std::sin(angle), cosine = std::cos(angle);
  const double push = (force + kPoleMass * kHalfLength * spin * spin * sine) / mass;
  const double angular_acceleration =
      (kGravity * sine - cosine * push) /
      (kHalfLength * (4.0 / 3.0 - kPoleMass * cosine * cosine / mass));
  const double acceleration = push - kPoleMass * kHalfLength * angular_acceleration * cosine / mass;
  const double change[] = {state_[1], acceleration, state_[3], angular_acceleration};
  for (size_t i = 0; i < state_.size(); ++i)
    state_[i] = static_cast<float>(state_[i] + kSeconds * change[i]);
  return state_;
}

bool CartPole::Failed() const {
  return std::abs(state_[0]) > kTrackHalf || std::abs(state_[2]) > kMaxAngle;
}

}  // namespace psd::examples
