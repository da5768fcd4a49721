#include "server/services/request_fingerprint.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <algorithm>
#include <array>
#include <string>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/checkpoint/xxh128.h"

namespace psd::server {
namespace {

using google::protobuf::io::CodedOutputStream;

// A stream that adds all bytes written, except the first `skip`, to a checksum.
class ChecksumStream final : public google::protobuf::io::ZeroCopyOutputStream {
 public:
  explicit ChecksumStream(size_t skip) : skip_(skip) {}

  bool Next(void** data, int* size) override {
    Flush();
    *data = piece_.data();
    *size = static_cast<int>(piece_.size());
    used_ = piece_.size();
    written_ += *size;
    return true;
  }
  void BackUp(int count) override {
    used_ -= static_cast<size_t>(count);
    written_ -= count;
  }
  int64_t ByteCount() const override { return written_; }

  std::string Digest() {
    Flush();
    return checksum_.Digest();
  }

 private:
  void Flush() {
    absl::string_view bytes(piece_.data(), used_);
    const size_t skipped = std::min(skip_, bytes.size());
    skip_ -= skipped;
    checksum_.Add(bytes.substr(skipped));
    used_ = 0;
  }

  size_t skip_;
  size_t used_ = 0;
  int64_t written_ = 0;
  std::array<char, 16 << 10> piece_;
  checkpoint::Xxh128 checksum_;
};

// Returns the serialized size of field 1, which comes first: its tag, its length and the header.
size_t SerializedHeaderBytes(const google::protobuf::MessageLite& header) {
  const size_t bytes = header.ByteSizeLong();
  return 1 + CodedOutputStream::VarintSize32(static_cast<uint32_t>(bytes)) + bytes;
}

}  // namespace

uint64_t RequestFingerprint(absl::string_view method, const google::protobuf::MessageLite& request,
                            const google::protobuf::MessageLite& header) {
  ChecksumStream stream(SerializedHeaderBytes(header));
  {
    CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    PSD_CHECK(request.SerializePartialToCodedStream(&coded), "a checksum takes all bytes");
  }
  return absl::HashOf(method, stream.Digest());
}

}  // namespace psd::server
