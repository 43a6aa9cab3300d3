// SHA-256 (FIPS 180-4), for the files of a run.
#pragma once

namespace {

class Sha256 {
  public:
    Sha256& add(const void* bytes, std::size_t count) {
        const unsigned char* next = static_cast<const unsigned char*>(bytes);
        length_ += count;
        for (; count > 0; --count) {
            block_[used_++] = *next++;
            if (used_ == sizeof block_) compress();
        }
        return *this;
    }
    Sha256& add(const std::string& text) { return add(text.data(), text.size()); }

    std::string hexadecimal() {
        const std::uint64_t bits = 8 * length_;
        const unsigned char end = 0x80, zero = 0;
        add(&end, 1);
        while (used_ != 56) add(&zero, 1);
        for (int i = 0; i < 8; ++i) {
            const unsigned char byte = static_cast<unsigned char>(bits >> (56 - 8 * i));
            add(&byte, 1);
        }
        std::string text;
        for (const std::uint32_t word : state_)
            for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
        return text;
    }

  private:
    static std::uint32_t turned(std::uint32_t word, int by) { return word >> by | word << (32 - by); }

    void compress() {
        static const std::uint32_t constants[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        std::uint32_t words[64], own[8];
        for (int i = 0; i < 16; ++i)
            words[i] = std::uint32_t{block_[4 * i]} << 24 | std::uint32_t{block_[4 * i + 1]} << 16 |
                       std::uint32_t{block_[4 * i + 2]} << 8 | std::uint32_t{block_[4 * i + 3]};
        for (int i = 16; i < 64; ++i) {
            const std::uint32_t a = words[i - 15], b = words[i - 2];
            words[i] = words[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + words[i - 7] +
                       (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
        }
        std::memcpy(own, state_, sizeof own);
        for (int i = 0; i < 64; ++i) {
            const std::uint32_t a = own[0], e = own[4];
            const std::uint32_t first = own[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) +
                                        ((e & own[5]) ^ (~e & own[6])) + constants[i] + words[i];
            const std::uint32_t second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) +
                                         ((a & own[1]) ^ (a & own[2]) ^ (own[1] & own[2]));
            std::memmove(own + 1, own, 7 * sizeof *own);
            own[4] += first;
            own[0] = first + second;
        }
        for (int i = 0; i < 8; ++i) state_[i] += own[i];
        used_ = 0;
    }

    std::uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char block_[64];
    std::size_t used_ = 0;
    std::uint64_t length_ = 0;
};

std::string sha256_of(const void* bytes, std::size_t count) { return Sha256().add(bytes, count).hexadecimal(); }
std::string sha256_of(const std::string& text) { return Sha256().add(text).hexadecimal(); }

}  // namespace
