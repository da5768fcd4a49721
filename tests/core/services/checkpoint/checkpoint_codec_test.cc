#include "core/services/checkpoint/checkpoint_codec.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {
namespace {

using ::testing::HasSubstr;

HostedValue Rows(DType dtype, Shape shape) {
  HostedValue rows;
  rows.value.name = "embedding";
  rows.value.kind = checkpoint::ValueKind::kRows;
  rows.value.dtype = dtype;
  rows.value.shape = std::move(shape);
  rows.value.requires_grad = true;
  return rows;
}

absl::Status DecodedAgain(const HostedValue& value) {
  OwnerContents contents;
  contents.values.push_back(value);
  return DecodeContents(EncodeContents(contents)).status();
}

TEST(CheckpointCodecTest, WhatFitsItsKindIsTaken) {
  EXPECT_TRUE(DecodedAgain(Rows(DType::kF32, Shape({3, 2}))).ok());
}

TEST(CheckpointCodecTest, RowsOfAnotherShapeOrTypeAreRefusedByName) {
  for (const Shape& shape : {Shape(), Shape({3}), Shape({3, 2, 2}), Shape({0, 2})}) {
    const absl::Status status = DecodedAgain(Rows(DType::kF32, shape));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << shape.ToString();
    EXPECT_THAT(std::string(status.message()), HasSubstr("'embedding'"));
  }
  EXPECT_EQ(DecodedAgain(Rows(DType::kI64, Shape({3, 2}))).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::services
