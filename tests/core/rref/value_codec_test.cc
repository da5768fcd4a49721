#include "core/rref/value_codec.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "core/base/buffer.h"
#include "core/rref/value_format.h"
#include "core/tensor/ops/shape_ops.h"
#include "gtest/gtest.h"
#include "tests/core/tensor/compare.h"

namespace psd::rref {
namespace {

using store::RemoteReference;
using store::Value;

class FakeReference : public RemoteReference {
 public:
  FakeReference(GlobalId id, std::string owner) : id_(id), owner_(std::move(owner)) {}
  GlobalId value_id() const override { return id_; }
  const std::string& owner() const override { return owner_; }

 private:
  GlobalId id_;
  std::string owner_;
};

absl::Status Fork(const RemoteReference& reference, ForkData& data) {
  data.owner = reference.owner();
  data.owner_incarnation = 77;
  data.value = reference.value_id();
  data.fork = {9, 10};
  data.parent = "trainer0";
  data.name = "w";
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Variable>> Constants(std::vector<Tensor> tensors) {
  return std::vector<Variable>(tensors.begin(), tensors.end());
}

absl::StatusOr<std::vector<Value>> Adopt(const ForkRun& run) {
  std::vector<Value> references;
  for (const ForkRun::Fork& fork : run.forks)
    references.emplace_back(std::make_shared<const FakeReference>(fork.value, run.owner));
  return references;
}

absl::StatusOr<std::vector<Value>> Decode(const rpc::Payload& payload) {
  return DecodeValues(payload, Constants, Adopt);
}

std::vector<Value> RoundTrip(const std::vector<Value>& values) {
  auto payload = EncodeValues(values, Fork);
  EXPECT_TRUE(payload.ok()) << payload.status();
  auto decoded = Decode(*payload);
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return decoded.value_or(std::vector<Value>{});
}

std::vector<Value> OneOfEach() {
  return {Value(),
          Value(true),
          Value(int64_t{-5}),
          Value(0.5),
          Value("text"),
          Value(Tensor::Of<float>({2}, {1, 2})),
          Value(std::make_shared<const FakeReference>(GlobalId{3, 4}, "owner0")),
          Value::OfList({Value(1), Value::OfList({})}),
          Value::OfMap({{"a", Value(Tensor::Of<double>({}, {3}))}, {"b", Value("x")}})};
}

TEST(ValueCodec, RPC_45_RPC_47_EveryKindArrivesAsItWas) {
  std::vector<Value> out = RoundTrip(OneOfEach());
  ASSERT_EQ(out.size(), 9u);
  EXPECT_TRUE(out[0].IsNone());
  EXPECT_EQ(*out[1].As<bool>(), true);
  EXPECT_EQ(*out[2].As<int64_t>(), -5);
  EXPECT_EQ(*out[3].As<double>(), 0.5);
  EXPECT_EQ(*out[4].As<std::string>(), "text");
  EXPECT_EQ(out[5].As<Variable>()->tensor().data<float>()[1], 2);
  EXPECT_EQ((*out[6].As<std::shared_ptr<const RemoteReference>>())->value_id(), (GlobalId{3, 4}));
  ASSERT_EQ(out[7].AsList()->size(), 2u);
  EXPECT_EQ(*(*out[7].AsList())[0].As<int64_t>(), 1);
  EXPECT_TRUE((*out[7].AsList())[1].AsList()->empty());
  EXPECT_EQ((*out[8].AsMap())[0].second.As<Variable>()->tensor().data<double>()[0], 3);
  EXPECT_EQ(*(*out[8].AsMap())[1].second.As<std::string>(), "x");
}

TEST(ValueCodec, GoldenBytes) {
  auto payload = EncodeValues(OneOfEach(), Fork);
  ASSERT_TRUE(payload.ok());
  EXPECT_EQ(absl::BytesToHexString(payload->header),
            "0a0d0102030405060708030809060512030200021a0101220209022a08000000000000e03f320774"
            "6578746162783a0404010101420201024a0201005201025a20030000000000000004000000000000"
            "0009000000000000000a00000000000000620201016a010172084d000000000000007a0f6f776e65"
            "7230747261696e65723077820103060801");
  ASSERT_EQ(payload->buffers.size(), 1u);
  EXPECT_EQ(payload->buffers[0].size(), 72u);
  EXPECT_EQ(absl::BytesToHexString(payload->buffers[0].view().substr(0, 8)), "0000803f00000040");
}

TEST(ValueCodec, RPC_44_AViewShipsItsOwnElementsOnly) {
  Tensor large = *Tensor::Zeros({1024, 1024}, DType::kF32);
  Tensor row = *ops::Slice(large, 0, 7, 8);
  Tensor column = *ops::Slice(large, 1, 7, 8);
  auto payload = EncodeValues({Value(row), Value(column)}, Fork);
  ASSERT_TRUE(payload.ok());
  size_t bytes = payload->header.size();
  for (const Buffer& buffer : payload->buffers) bytes += buffer.size();
  EXPECT_LT(bytes, 2 * 4096u + 1024u);
  auto out = Decode(*payload);
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ((*out)[0].As<Variable>()->shape(), (Shape{1, 1024}));
  EXPECT_EQ((*out)[1].As<Variable>()->shape(), (Shape{1024, 1}));
}

TEST(ValueCodec, SmallTensorsShareABufferAndLargeOnesAreNotCopied) {
  Tensor large = *Tensor::Zeros({8192}, DType::kF32);
  Tensor limit = *Tensor::Zeros({4096}, DType::kF32);
  std::vector<Value> values = {Value(Tensor::Of<float>({3}, {1, 2, 3})), Value(large), Value(limit),
                               Value(*Tensor::Zeros({0, 4}, DType::kF32)),
                               Value(Tensor::Of<uint8_t>({1}, {7}))};
  auto payload = EncodeValues(values, Fork);
  ASSERT_TRUE(payload.ok());
  ASSERT_EQ(payload->buffers.size(), 2u);
  EXPECT_EQ(payload->buffers[0].size(), 64 + 16384 + 1u);
  EXPECT_EQ(payload->buffers[1].data(), large.raw_data());
  auto out = Decode(*payload);
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ((*out)[0].As<Variable>()->tensor().raw_data(), payload->buffers[0].data());
  EXPECT_EQ((*out)[1].As<Variable>()->tensor().raw_data(), large.raw_data());
  EXPECT_EQ((*out)[3].As<Variable>()->shape(), (Shape{0, 4}));
  EXPECT_EQ((*out)[4].As<Variable>()->tensor().data<uint8_t>()[0], 7);
}

TEST(ValueCodec, TensorsOfEveryLookArriveAsTheyWere) {
  const Tensor matrix = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor large = *Tensor::Full({100, 100}, DType::kF64, 0.5);
  std::vector<Tensor> tensors = {matrix,
                                 matrix,
                                 Tensor::Scalar(int64_t{-7}),
                                 *Tensor::Zeros({0, 9}, DType::kF64),
                                 *ops::Transpose(matrix, 0, 1),
                                 *ops::Transpose(large, 0, 1),
                                 large,
                                 Tensor::Of<bool>({3}, {true, false, true}),
                                 Tensor::Of<bool>({3}, {false, false, true}),
                                 *Tensor::Full({2}, DType::kBF16, 1.5)};
  auto payload = EncodeTensorValues(tensors);
  ASSERT_TRUE(payload.ok()) << payload.status();
  auto decoded = DecodeTensorValues(*payload);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(ops::Equal((*decoded)[i], tensors[i]));
}

TEST(ValueCodec, TensorsAlikeAreToldOnce) {
  const auto header_bytes = [](size_t count) {
    return EncodeTensorValues(std::vector<Tensor>(count, Tensor::Scalar(1.0f)))->header.size();
  };
  EXPECT_LE(header_bytes(1000), 1000 + header_bytes(1) + 4);
}

TEST(ValueCodec, ARunThatArrivedInPartNamesTheFirstTensorThatDidNot) {
  // Three tensors of 40 bytes, each aligned to 64 bytes, take 168 bytes.
  auto payload = EncodeTensorValues(std::vector<Tensor>(3, *Tensor::Zeros({10}, DType::kF32)));
  ASSERT_TRUE(payload.ok());
  const Buffer whole = payload->buffers[0];
  ASSERT_EQ(whole.size(), 168u);
  const auto error = [&](size_t bytes) {
    payload->buffers[0] = whole.Slice(0, bytes);
    return std::string(DecodeTensorValues(*payload).status().message());
  };
  EXPECT_EQ(error(168), "");
  EXPECT_NE(error(167).find("tensor 2: needs 40 bytes, of which 39 arrived"), std::string::npos);
  EXPECT_NE(error(120).find("tensor 2: needs 40 bytes, of which 0 arrived"), std::string::npos);
  EXPECT_NE(error(104).find("tensor 2: needs 40 bytes, of which 0 arrived"), std::string::npos);
  EXPECT_NE(error(103).find("tensor 1: needs 40 bytes, of which 39 arrived"), std::string::npos);
  EXPECT_NE(error(0).find("tensor 0: needs 40 bytes, of which 0 arrived"), std::string::npos);
}

TEST(ValueCodec, RunsOfMoreTensorsThanThereAreValuesAreRefused) {
  auto payload = EncodeTensorValues({*Tensor::Zeros({0}, DType::kF32)});
  ASSERT_TRUE(payload.ok());
  payload->header.append("\x62\x05\xff\xff\xff\xff\x0f", 7);  // a run of 4,294,967,295
  absl::Status status = Decode(*payload).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  payload = EncodeTensorValues({*Tensor::Zeros({0}, DType::kF32)});
  const size_t run = payload->header.find("\x62\x01\x01");
  ASSERT_NE(run, std::string::npos);
  payload->header.replace(run, 3, "\x62\x05\xff\xff\xff\xff\x0f", 7);
  status = Decode(*payload).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("add up to 4294967295"), std::string::npos) << status;
}

TEST(ValueCodec, NanAndInfinityPassUnaltered) {
  const float inf = std::numeric_limits<float>::infinity();
  auto out = RoundTrip({Value(Tensor::Of<float>({2}, {std::nanf(""), -inf})), Value(double{inf})});
  EXPECT_TRUE(std::isnan(out[0].As<Variable>()->tensor().data<float>()[0]));
  EXPECT_EQ(out[0].As<Variable>()->tensor().data<float>()[1], -inf);
  EXPECT_EQ(*out[1].As<double>(), inf);
}

Value Nested(int depth) {
  Value value = 1;
  for (int i = 1; i < depth; ++i) value = Value::OfList({value});
  return value;
}

TEST(ValueCodec, DepthIsBounded) {
  RoundTrip({Nested(store::kMaxValueDepth)});
  auto payload = EncodeValues({Nested(store::kMaxValueDepth + 1)}, Fork);
  EXPECT_EQ(payload.status().code(), absl::StatusCode::kInvalidArgument);
}

class Thing : public store::Object {
  std::string TypeName() const override { return "thing"; }
};

TEST(ValueCodec, RPC_42_WhatCannotTravelIsRefused) {
  EXPECT_EQ(EncodeValues({Value(std::shared_ptr<store::Object>(new Thing))}, Fork).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EncodeValues({Value(Variable())}, Fork).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ValueCodec, CollectVariablesFollowsTheOrderOfTheWire) {
  std::vector<Value> values = {Value::OfList({Value(Tensor::Of<float>({}, {1})), Value(2)}),
                               Value::OfMap({{"b", Value(Tensor::Of<float>({}, {3}))},
                                             {"a", Value(Tensor::Of<float>({}, {2}))}})};
  std::vector<Variable> variables = CollectVariables(values);
  ASSERT_EQ(variables.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(variables[i].tensor().data<float>()[0], i + 1);
}

Value Sparse() {
  return Value(*SparseTensor::Create({5, 2}, Tensor::Of<int64_t>({1, 3}, {4, 0, 4}),
                                     Tensor::Of<float>({3, 2}, {1, 2, 3, 4, 5, 6})));
}

TEST(ValueCodec, RPC_46_SparseTensorsTravelAsTheyAreAndInContainers) {
  auto out = RoundTrip({Value(Tensor::Of<float>({1}, {7})), Sparse(), Value::OfList({Sparse()})});
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].As<Variable>()->tensor().data<float>()[0], 7);
  for (const SparseTensor* sparse : {out[1].AsSparse(), (*out[2].AsList())[0].AsSparse()}) {
    ASSERT_NE(sparse, nullptr);
    EXPECT_EQ(sparse->shape(), (Shape{5, 2}));
    EXPECT_EQ(sparse->NumEntries(), 3);
    EXPECT_EQ(sparse->indices().data<int64_t>()[2], 4);
    EXPECT_EQ(sparse->values().data<float>()[5], 6);
  }
  EXPECT_EQ(CollectVariables({Sparse()}).size(), kTensorsPerSparse);
}

TEST(ValueCodec, GoldenBytesOfASparseTensor) {
  auto payload = EncodeValues({Sparse()}, Fork);
  ASSERT_TRUE(payload.ok());
  EXPECT_EQ(absl::BytesToHexString(payload->header),
            "0a010a42030303014a03010202520502010303026203010101");
  ASSERT_EQ(payload->buffers.size(), 1u);
  EXPECT_EQ(payload->buffers[0].size(), 152u);
  EXPECT_EQ(absl::BytesToHexString(payload->buffers[0].view().substr(0, 16)),
            "05000000000000000200000000000000");
}

TEST(ValueCodec, HostileSparseTensorsAreRefused) {
  const auto refused = [](Tensor extents, Tensor indices, Tensor values) {
    auto payload = EncodeValues({Value(extents), Value(indices), Value(values)}, Fork);
    payload->header.replace(0, 5, "\x0a\x01\x0a", 3);  // turns three tensors into a sparse one
    return Decode(*payload).status().code() == absl::StatusCode::kInvalidArgument;
  };
  const Tensor extents = Tensor::Of<int64_t>({2}, {5, 2});
  const Tensor indices = Tensor::Of<int64_t>({1, 1}, {4});
  const Tensor values = Tensor::Of<float>({1, 2}, {1, 2});
  EXPECT_FALSE(refused(extents, indices, values));
  EXPECT_TRUE(refused(Tensor::Of<float>({2}, {5, 2}), indices, values));
  EXPECT_TRUE(refused(Tensor::Of<int64_t>({1, 2}, {5, 2}), indices, values));
  EXPECT_TRUE(refused(Tensor::Of<int64_t>({2}, {5, -2}), indices, values));
  EXPECT_TRUE(refused(Tensor::Of<int64_t>({2}, {INT64_MAX, 2}), indices, values));
  EXPECT_TRUE(refused(extents, Tensor::Of<int64_t>({1, 1}, {5}), values));
  EXPECT_TRUE(refused(extents, Tensor::Of<int64_t>({1, 1}, {-1}), values));
  EXPECT_TRUE(refused(extents, Tensor::Of<int64_t>({3, 1}, {0, 0, 0}), values));
  EXPECT_TRUE(refused(extents, Tensor::Of<int32_t>({1, 1}, {0}), values));
  EXPECT_TRUE(refused(extents, indices, Tensor::Of<float>({2, 2}, {1, 2, 3, 4})));
}

TEST(ValueCodec, RPC_45_NoTruncatedMessageDecodes) {
  auto payload = EncodeValues(OneOfEach(), Fork);
  ASSERT_TRUE(payload.ok());
  for (size_t size = 1; size < payload->header.size(); ++size) {
    rpc::Payload cut = *payload;
    cut.header.resize(size);
    EXPECT_FALSE(Decode(cut).ok()) << size;
  }
  rpc::Payload cut = *payload;
  cut.buffers[0] = cut.buffers[0].Slice(0, cut.buffers[0].size() - 1);
  EXPECT_FALSE(Decode(cut).ok());
  cut.buffers.clear();
  EXPECT_FALSE(Decode(cut).ok());
  cut = *payload;
  cut.buffers.push_back(cut.buffers[0]);
  EXPECT_FALSE(Decode(cut).ok());
}

Value ReferenceTo(uint64_t counter, const std::string& owner) {
  return Value(std::make_shared<const FakeReference>(GlobalId{3, counter}, owner));
}

TEST(ValueCodec, RRefsOfOneOwnerThatFollowEachOtherAreARun) {
  const std::vector<Value> values = {
      ReferenceTo(1, "owner0"), Value("between"), ReferenceTo(2, "owner0"),
      Value::OfList({ReferenceTo(3, "owner1")}), ReferenceTo(4, "owner0")};
  auto payload = EncodeValues(values, Fork);
  ASSERT_TRUE(payload.ok()) << payload.status();
  std::vector<ForkRun> runs;
  auto out = DecodeValues(*payload, Constants, [&](const ForkRun& run) {
    runs.push_back(run);
    return Adopt(run);
  });
  ASSERT_TRUE(out.ok()) << out.status();
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].forks.size(), 2u);
  EXPECT_EQ(runs[0].owner, "owner0");
  EXPECT_EQ(runs[0].parent, "trainer0");
  EXPECT_EQ(runs[0].owner_incarnation, 77u);
  EXPECT_EQ(runs[0].forks[1].value, (GlobalId{3, 2}));
  EXPECT_EQ(runs[0].forks[1].fork, (GlobalId{9, 10}));
  EXPECT_EQ(runs[0].forks[1].name, "w");
  EXPECT_EQ(runs[1].owner, "owner1");
  EXPECT_EQ(runs[2].forks[0].value, (GlobalId{3, 4}));
  const auto id_of = [](const Value& value) {
    return (*value.As<std::shared_ptr<const RemoteReference>>())->value_id().counter;
  };
  EXPECT_EQ(id_of((*out)[2]), 2u);
  EXPECT_EQ(id_of((*(*out)[3].AsList())[0]), 3u);
  EXPECT_EQ(id_of((*out)[4]), 4u);
}

TEST(ValueCodec, HostileRunsOfRRefsAreRefused) {
  auto payload = EncodeValues({ReferenceTo(1, "owner0")}, Fork);
  ASSERT_TRUE(payload.ok());
  const auto refused = [&](const std::string& what, const std::string& by) {
    rpc::Payload damaged = *payload;
    const size_t at = damaged.header.find(what);
    EXPECT_NE(at, std::string::npos);
    damaged.header.replace(at, what.size(), by);
    return Decode(damaged).status().code() == absl::StatusCode::kInvalidArgument;
  };
  const std::string run("\x6a\x01\x01", 3), sizes("\x82\x01\x03\x06\x08\x01", 6);
  EXPECT_FALSE(refused(run, run));
  EXPECT_TRUE(refused(run, std::string("\x6a\x01\x00", 3)));
  EXPECT_TRUE(refused(run, std::string("\x6a\x01\x02", 3)));
  EXPECT_TRUE(refused(run, std::string("\x6a\x02\x01\x00", 4)));
  EXPECT_TRUE(refused(run, std::string("\x6a\x05\xff\xff\xff\xff\x0f", 7)));
  EXPECT_TRUE(refused(sizes, std::string("\x82\x01\x03\x06\x08\x02", 6)));
  EXPECT_TRUE(refused(sizes, std::string("\x82\x01\x02\x06\x09", 5)));
}

TEST(ValueCodec, NothingIsAdoptedFromADamagedMessage) {
  auto payload = EncodeValues(OneOfEach(), Fork);
  ASSERT_TRUE(payload.ok());
  payload->header.append("\x12\x01\x05", 3);  // adds a superfluous number of items
  int adopted = 0;
  auto out = DecodeValues(*payload, Constants, [&](const ForkRun& run) {
    ++adopted;
    return Adopt(run);
  });
  EXPECT_EQ(out.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(adopted, 0);
}

TEST(ValueCodec, ReferencesAreAdoptedEvenIfTheTensorsCannotBeRead) {
  const auto payload =
      EncodeValues({Tensor::Of<float>(Shape{2}, {1, 2}), ReferenceTo(1, "owner0")}, Fork);
  ASSERT_TRUE(payload.ok());
  int adopted = 0;
  const auto adopt = [&](const ForkRun& run) {
    ++adopted;
    return Adopt(run);
  };
  const auto full = [](const std::vector<Tensor>&) -> absl::StatusOr<std::vector<Variable>> {
    return absl::ResourceExhaustedError("full");
  };
  EXPECT_EQ(DecodeValues(*payload, full, adopt).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(adopted, 1);
  rpc::Payload torn = *payload;
  torn.buffers.clear();
  EXPECT_EQ(DecodeValues(torn, Constants, adopt).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(adopted, 2);
}

TEST(ValueCodecTest, ListsOfTensorsTravelAsValuesDoAndMayHaveGaps) {
  const std::vector<Tensor> tensors = {Tensor::Of<float>(Shape{2}, {1, 2}), Tensor(),
                                       Tensor::Of<double>(Shape{0, 3}, {})};
  auto payload = EncodeTensorValues(tensors);
  ASSERT_TRUE(payload.ok()) << payload.status();
  auto back = DecodeTensorValues(*payload);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->size(), 3u);
  EXPECT_EQ((*back)[0].data<float>()[1], 2);
  EXPECT_FALSE((*back)[1].defined());
  EXPECT_EQ((*back)[2].shape(), (Shape{0, 3}));
  auto values = EncodeValues({Value(tensors[0]), Value(), Value(tensors[2])}, Fork);
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->header, payload->header);
}

TEST(ValueCodecTest, AListOfTensorsRefusesOtherValues) {
  auto payload = EncodeValues({Value(Tensor::Scalar(1.0f)), Value(7)}, Fork);
  ASSERT_TRUE(payload.ok());
  absl::Status status = DecodeTensorValues(*payload).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("value 1 of 2"), std::string::npos) << status;
}

}  // namespace
}  // namespace psd::rref
