#include "core/rpc/parse_cost.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <cstdint>

namespace psd::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::CodedInputStream;

// The kinds of fields in Protocol Buffers' encoding: the lowest three bits of a tag.
enum WireType : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kDelimited = 2,
  kGroupBegins = 3,
  kGroupEnds = 4,
  kFixed32 = 5,
};

// The cost of an element of a column that grows by doubling, or of an unknown field.
constexpr size_t kScalarBytes = 32;
// The cost of a string or message in a list, with the pointer to it and what the allocator adds.
constexpr size_t kStringBytes = 96;
constexpr size_t kMessageBytes = 320;
// Parsers stop at this depth.
constexpr int kMaxDepth = 100;

// Whether an element takes as much in a message as in memory.
bool IsFixed(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED64:
    case FieldDescriptor::TYPE_SFIXED32:
      return true;
    default:
      return false;
  }
}

// Whether a field that is not in a list has this wire type.
bool Fits(uint32_t wire_type, const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
      return wire_type == kFixed64;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
      return wire_type == kFixed32;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE:
      return wire_type == kDelimited;
    default:
      return wire_type == kVarint;
  }
}

class Walk {
 public:
  explicit Walk(CodedInputStream& in) : in_(in) {}

  // Returns false at the first error, where a parser stops.
  bool Message(const Descriptor& type, int depth) {
    while (const uint32_t tag = in_.ReadTag()) {
      if (!Field(tag & 7, type.FindFieldByNumber(static_cast<int>(tag >> 3)), depth)) return false;
    }
    return in_.ConsumedEntireMessage();
  }
  size_t cost() const { return cost_; }

 private:
  bool Field(uint32_t wire_type, const FieldDescriptor* field, int depth) {
    // A single field is stored inside its message, unless it has the wrong wire type: then a parser
    // keeps it as an unknown field.
    if (field == nullptr || field->is_repeated() || !Fits(wire_type, *field)) cost_ += kScalarBytes;
    switch (wire_type) {
      case kVarint: {
        uint64_t value;
        return in_.ReadVarint64(&value);
      }
      case kFixed64:
        return in_.Skip(8);
      case kDelimited:
        return Delimited(field, depth);
      case kGroupBegins:  // a group is an unknown field; its contents are counted one by one
      case kGroupEnds:
        cost_ += kStringBytes;
        return true;
      case kFixed32:
        return in_.Skip(4);
      default:
        return false;
    }
  }

  bool Delimited(const FieldDescriptor* field, int depth) {
    int length;
    if (!in_.ReadVarintSizeAsInt(&length)) return false;
    const auto bytes = static_cast<size_t>(length);
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE) {
      cost_ += kMessageBytes;
      if (depth >= kMaxDepth) return false;
      const CodedInputStream::Limit limit = in_.PushLimit(length);
      const bool whole = Message(*field->message_type(), depth + 1);
      in_.PopLimit(limit);
      return whole;
    }
    if (field != nullptr && field->is_packable()) {
      // An element has at least one byte. The cost is doubled because the column is copied when it
      // grows.
      cost_ += 2 * bytes * (IsFixed(*field) ? 1 : sizeof(uint64_t));
    } else {
      cost_ += kStringBytes + bytes;
    }
    return in_.Skip(length);
  }

  CodedInputStream& in_;
  size_t cost_ = 0;
};

}  // namespace

size_t ParseCost(const Descriptor& type, google::protobuf::io::ZeroCopyInputStream& bytes) {
  CodedInputStream in(&bytes);
  Walk walk(in);
  walk.Message(type, 0);
  return walk.cost();
}

size_t ParseCost(const Descriptor& type, absl::string_view bytes) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  return ParseCost(type, stream);
}

}  // namespace psd::rpc
