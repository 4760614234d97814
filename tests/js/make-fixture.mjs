// Makes tests/fixtures/tokenizer/tokenizer.json from text.txt beside it: all 256 bytes, merges counted on that text
// (most frequent pair first, ties by the smaller pair of ids), and the added tokens that the chat form and the tests
// need. The split patterns are of the kind that released models of this family use. Run: node tests/js/make-fixture.mjs
import fs from 'node:fs';

const folder = new URL('../fixtures/tokenizer/', import.meta.url);
const text = fs.readFileSync(new URL('text.txt', folder), 'utf8');
const MERGES = 400;

const digits = '\\p{N}{1,3}';
const han = '[\\u4e00-\\u9fa5\\u3040-\\u30ff]+';
const words = '[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*' +
    '|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

const symbols = [];
for (let b = 0, next = 256; b < 256; b++) {
    const plain = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    symbols.push(String.fromCodePoint(plain ? b : next++));
}

function split(pieces, pattern) {
    const out = [];
    for (const piece of pieces) {
        let done = 0;
        for (const m of piece.matchAll(new RegExp(pattern, 'gu'))) {
            if (m.index > done) out.push(piece.slice(done, m.index));
            out.push(m[0]);
            done = m.index + m[0].length;
        }
        if (done < piece.length) out.push(piece.slice(done));
    }
    return out;
}

const lead = ['<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>', '<｜▁pad▁｜>'];
const tokens = [...lead, ...symbols];
const vocab = Object.fromEntries(tokens.map((t, i) => [t, i]));
const parts = [digits, han, words]
                  .reduce(split, [text])
                  .map((piece) => [...new TextEncoder().encode(piece)].map((b) => lead.length + b));

const merges = [];
while (merges.length < MERGES) {
    const count = new Map();
    for (const p of parts)
        for (let i = 0; i + 1 < p.length; i++) {
            const key = p[i] * 65536 + p[i + 1];
            count.set(key, (count.get(key) ?? 0) + 1);
        }
    const [key] = [...count].reduce((a, b) => (b[1] > a[1] || (b[1] === a[1] && b[0] < a[0]) ? b : a));
    const a = Math.floor(key / 65536), b = key % 65536;
    const joined = tokens[a] + tokens[b];
    if (!(joined in vocab)) {
        vocab[joined] = tokens.length;
        tokens.push(joined);
    }
    merges.push(`${tokens[a]} ${tokens[b]}`);
    for (const p of parts)
        for (let i = 0; i + 1 < p.length; i++)
            if (p[i] === a && p[i + 1] === b) p.splice(i, 2, vocab[joined]);
}

const added = [];
const add = (content, special, normalized) => added.push({
    id: vocab[content] ?? tokens.push(content) - 1,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized,
    special
});
for (const t of lead) add(t, true, false);
for (const t of ['<｜System｜>', '<｜User｜>', '<｜Assistant｜>', '<think>', '</think>', '｜DSML｜'])
    add(t, false, true);
add('<|EOT|>', true, true);
add('<|EOT|>!', false, true);
add('<|sep|>', true, false);
add('>#<', false, true);

fs.writeFileSync(
    new URL('tokenizer.json', folder),
    JSON.stringify(
        {
            version: '1.0',
            truncation: null,
            padding: null,
            added_tokens: added,
            normalizer: {type: 'Sequence', normalizers: []},
            pre_tokenizer: {
                type: 'Sequence',
                pretokenizers: [
                    ...[digits, han, words].map(
                        (r) => ({type: 'Split', pattern: {Regex: r}, behavior: 'Isolated', invert: false})),
                    {type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false},
                ],
            },
            post_processor: null,
            decoder: {type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true},
            model:
                {
                    type: 'BPE',
                    dropout: null,
                    unk_token: null,
                    continuing_subword_prefix: null,
                    end_of_word_suffix: null,
                    fuse_unk: false,
                    byte_fallback: false,
                    vocab,
                    merges,
                },
        },
        null, 1) +
        '\n');
