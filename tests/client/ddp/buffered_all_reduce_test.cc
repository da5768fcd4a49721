// Gradients of replicas, averaged over real groups.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/collectives/group.h"
#include "client/ddp/buffered_all_reduce.h"
#include "client/psd.h"
#include "core/tensor/ops/cast.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

ReplicatedParameter Parameter(const Shape& shape, DType dtype = DType::kF32) {
  ReplicatedParameter parameter;
  parameter.shape = shape;
  parameter.dtype = dtype;
  return parameter;
}

Tensor Filled(const Shape& shape, double value, DType dtype = DType::kF32) {
  return Must(Tensor::Full(shape, dtype, value));
}

class BufferedAllReduceTest : public ::testing::Test {
 protected:
  BufferedAllReduceTest() : world_(kRanks), groups_(world_.JoinAll("ranks")) {}

  // Runs f on all ranks at the same time.
  void OnAll(const std::vector<ReplicatedParameter>& parameters, int64_t buffer_elements,
             const std::function<void(int rank, const BufferedAllReduce& averaging)>& f) {
    BufferedOptions options;
    options.buffer_elements = buffer_elements;
    InParallel(kRanks, [&](int rank) {
      f(rank, Must(BufferedAllReduce::Create(groups_[rank], parameters, options)));
    });
  }

  GroupWorld world_;
  std::vector<std::shared_ptr<Group>> groups_;
};

TEST_F(BufferedAllReduceTest, DDP_32_SumsAreInTheOrderOfTheRanksAndAMissingGradientChangesNoBits) {
  const std::vector<ReplicatedParameter> parameters = {Parameter({2}), Parameter({100})};
  for (const int64_t buffer : {1, 1000}) {
    OnAll(parameters, buffer, [&](int rank, const BufferedAllReduce& adding) {
      const float mine = rank == 0 ? 0x1p24f : 1;  // 2^24 + 1 is 2^24
      std::vector<Tensor> gradients{rank == 1 ? Filled({2}, -0.0) : Tensor(), Filled({100}, mine)};
      const std::vector<Tensor> sums = Must(adding.Sum(gradients));
      EXPECT_TRUE(SameBits(sums[0], Filled({2}, -0.0)));
      EXPECT_TRUE(SameBits(sums[1], Filled({100}, 0x1p24f)));
    });
  }
}

TEST_F(BufferedAllReduceTest, DDP_01_DDP_21_EveryRankHasTheMeansInTheirShapes) {
  const std::vector<ReplicatedParameter> parameters = {Parameter({2, 3}), Parameter({}),
                                                       Parameter({100, 7}), Parameter({5})};
  for (const int64_t buffer : {1, 12, 1000}) {
    OnAll(parameters, buffer, [&](int rank, const BufferedAllReduce& averaging) {
      std::vector<Tensor> gradients;
      for (const ReplicatedParameter& parameter : parameters)
        gradients.push_back(Filled(parameter.shape, 3 * (rank + 1)));
      gradients[2] = Filled({}, 3 * rank).Repeated({100, 7});  // not contiguous
      const std::vector<Tensor> means = Must(averaging.Mean(gradients));
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_EQ(means[i].shape(), parameters[i].shape);
        EXPECT_THAT(Elements(means[i]), Each(i == 2 ? 3 : 6));
      }
      // Averaging what is equal already changes nothing.
      const std::vector<Tensor> again = Must(averaging.Mean(means));
      for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(SameBits(again[i], means[i]));
    });
  }
}

TEST_F(BufferedAllReduceTest, DDP_31_TheSizeOfTheBufferChangesNoBit) {
  std::vector<ReplicatedParameter> parameters;
  for (int64_t i = 1; i < 40; ++i) parameters.push_back(Parameter({i * 13 % 31 + 1}));
  std::vector<std::vector<Tensor>> all;
  for (const int64_t buffer : {7, 64, 1'000'000}) {
    std::vector<Tensor> of_rank[kRanks];
    OnAll(parameters, buffer, [&](int rank, const BufferedAllReduce& averaging) {
      std::vector<Tensor> gradients;
      for (size_t i = 0; i < parameters.size(); ++i)
        gradients.push_back(Filled(parameters[i].shape, 0.1 * (rank + 1) + 1e-3 * i));
      of_rank[rank] = Must(averaging.Mean(gradients));
    });
    for (auto& means : of_rank) all.push_back(std::move(means));
  }
  for (const std::vector<Tensor>& means : all)
    for (size_t i = 0; i < means.size(); ++i) EXPECT_TRUE(SameBits(means[i], all[0][i]));
}

TEST_F(BufferedAllReduceTest, DDP_07_EachGradientIsDividedBeforeTheSum) {
  OnAll({Parameter({4}, DType::kF16), Parameter({4})}, 100,
        [&](int /*rank*/, const BufferedAllReduce& averaging) {
          // The sums of these are infinite.
          const std::vector<Tensor> means =
              Must(averaging.Mean({Filled({4}, 60000, DType::kF16), Filled({4}, 3e38)}));
          EXPECT_THAT(Elements(Must(ops::Cast(means[0], DType::kF32))), Each(60000));
          EXPECT_THAT(Elements(means[1]), Each(::testing::FloatEq(3e38f)));
        });
}

TEST_F(BufferedAllReduceTest, DDP_09_DDP_10_DDP_11_MissingGradientsAreZerosAndExistAfterwards) {
  OnAll({Parameter({4}), Parameter({200}), Parameter({3})}, 50,
        [&](int rank, const BufferedAllReduce& averaging) {
          std::vector<Tensor> gradients(3);
          if (rank == 1) gradients[0] = Filled({4}, 6);
          if (rank != 1) gradients[1] = Filled({200}, 3);
          const std::vector<Tensor> means = Must(averaging.Mean(gradients));
          EXPECT_THAT(Elements(means[0]), Each(2));
          EXPECT_THAT(Elements(means[1]), Each(2));
          EXPECT_THAT(Elements(means[2]), Each(0)) << "no rank has a gradient";
        });
}

TEST_F(BufferedAllReduceTest, DDP_08_DDP_28_FrozenOnesStayAbsentAndExpertsKeepTheirOwn) {
  std::vector<ReplicatedParameter> parameters(3, Parameter({2}));
  parameters[0].requires_grad = false;
  parameters[1].expert = parameters[2].expert = true;
  OnAll(parameters, 100, [&](int rank, const BufferedAllReduce& averaging) {
    const std::vector<Tensor> means = Must(averaging.Mean({Tensor(), Filled({2}, rank), Tensor()}));
    EXPECT_FALSE(means[0].defined());
    EXPECT_THAT(Elements(means[1]), Each(rank));
    EXPECT_THAT(Elements(means[2]), Each(0));
    EXPECT_TRUE(averaging.groups().empty());
  });
}

TEST_F(BufferedAllReduceTest, DDP_19_EachDTypeKeepsItsPrecision) {
  OnAll({Parameter({1}), Parameter({1}, DType::kF64)}, 100,
        [&](int /*rank*/, const BufferedAllReduce& averaging) {
          const double fine = 3 * (1 + 0x1p-40);
          const std::vector<Tensor> means =
              Must(averaging.Mean({Filled({1}, 3), Filled({1}, fine, DType::kF64)}));
          EXPECT_EQ(means[1].dtype(), DType::kF64);
          EXPECT_EQ(Elements<double>(means[1])[0], fine);
        });
}

TEST_F(BufferedAllReduceTest, WhatIsWrongIsRefusedBeforeAnythingIsSent) {
  std::vector<ReplicatedParameter> parameters = {Parameter({2}), Parameter({3})};
  parameters[1].requires_grad = false;
  OnAll(parameters, 100, [&](int rank, const BufferedAllReduce& averaging) {
    if (rank == 0) {
      const auto refused = [&](const std::vector<Tensor>& gradients) {
        const absl::Status status = averaging.Mean(gradients).status();
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
        return std::string(status.message());
      };
      refused({Filled({2}, 1)});
      EXPECT_THAT(refused({Filled({3}, 1), Tensor()}), HasSubstr("parameter 0, f32[2], has"));
      refused({Filled({2}, 1, DType::kF64), Tensor()});
      EXPECT_THAT(refused({Tensor(), Filled({3}, 1)}), HasSubstr("frozen"));
    }
    EXPECT_THAT(Elements(Must(averaging.Mean({Filled({2}, 3), Tensor()}))[0]), Each(3));
  });
  EXPECT_FALSE(BufferedAllReduce::Create(groups_[0], {Parameter({2}, DType::kI64)}).ok());
  BufferedOptions nothing;
  nothing.buffer_elements = 0;
  EXPECT_FALSE(BufferedAllReduce::Create(groups_[0], {Parameter({2})}, nothing).ok());
}

TEST_F(BufferedAllReduceTest, ZERO_17_OptionsThatDifferAreAnErrorOnEveryRank) {
  InParallel(kRanks, [&](int rank) {
    BufferedOptions options;
    options.buffer_elements = rank == 0 ? 4 : 100;
    const BufferedAllReduce averaging =
        Must(BufferedAllReduce::Create(groups_[rank], {Parameter({4}), Parameter({3})}, options));
    const absl::Status status = averaging.Mean({Filled({4}, 1), Filled({3}, 1)}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 (t0) calls all-reduce"));
  });
}

TEST(BufferedAllReduceAloneTest, DDP_18_AGroupOfOneChangesNothing) {
  WorkerOptions options;
  options.name = "alone";
  const auto worker = Must(Worker::Start(std::move(options)));
  GroupOptions one;
  one.members = {"alone"};
  const BufferedAllReduce averaging = Must(BufferedAllReduce::Create(
      Must(Group::Join(*worker, "solo", one)), {Parameter({2}), Parameter({2})}));
  const std::vector<Tensor> means = Must(averaging.Mean({Filled({2}, 0.3), Tensor()}));
  EXPECT_TRUE(SameBits(means[0], Filled({2}, 0.3)));
  EXPECT_THAT(Elements(means[1]), Each(0)) << "a missing gradient counts as zeros here, too";
}

}  // namespace
}  // namespace psd
