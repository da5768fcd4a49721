#include "examples/rl_agent/cart_pole.h"

#include <cmath>

#include "gtest/gtest.h"

namespace psd::examples {
namespace {

TEST(CartPoleTest, StartsNearZeroAndDependsOnItsSeed) {
  CartPole one(1), same(1), other(2);
  const CartPole::State state = one.Reset();
  for (float value : state) EXPECT_LT(std::abs(value), 0.0501);
  EXPECT_EQ(same.Reset(), state);
  EXPECT_NE(other.Reset(), state);
  EXPECT_FALSE(one.Failed());
}

TEST(CartPoleTest, APushMovesTheCartAndTiltsThePoleTheOtherWay) {
  CartPole right(1), left(1);
  right.Reset();
  left.Reset();
  CartPole::State after_right = {}, after_left = {};
  for (int i = 0; i < 3; ++i) {
    after_right = right.Push(true);
    after_left = left.Push(false);
  }
  EXPECT_GT(after_right[1], after_left[1]);
  EXPECT_LT(after_right[3], after_left[3]);
}

// The cart starts at rest with an upright pole. With F = 10 N, M = 1.1 kg in all and m = 0.1 kg for
// the pole, it is accelerated to the right by (F / M) (1 + 3 m / (4 M - 3 m)).
TEST(CartPoleTest, AccelerationsAreThoseOfTheEquations) {
  CartPole cart(1);
  const CartPole::State before = cart.Reset();
  const CartPole::State after = cart.Push(true);
  EXPECT_NEAR((after[1] - before[1]) / 0.02, 9.7561, 0.2);
  EXPECT_NEAR((after[3] - before[3]) / 0.02, -14.634, 1.5);
}

TEST(CartPoleTest, PushedOneWayItFailsSoon) {
  CartPole cart(1);
  cart.Reset();
  int steps = 0;
  while (!cart.Failed() && steps < 100) {
    cart.Push(true);
    ++steps;
  }
  EXPECT_GT(steps, 5);
  EXPECT_LT(steps, 20);
}

}  // namespace
}  // namespace psd::examples
